"""The asset for Dagster, materialised by Dagster in this process."""

import pytest

pytest.importorskip("dagster", reason="needs Dagster; make test-orchestrators installs it")

from dagster import AssetsDefinition, ExecuteInProcessResult, RetryPolicy, materialize

from celery_wheel.pipeline.orchestrators.dagster import wheel_job_asset
from tests.kit.stand_in_job import COMMAND, DONE, FOUND


def run(*assets: AssetsDefinition) -> ExecuteInProcessResult:
    return materialize(assets, raise_on_error=False)


def test_the_summary_is_the_metadata_of_the_asset() -> None:
    archive = wheel_job_asset("archive", [DONE, "0"], command=COMMAND)
    late = wheel_job_asset("lateness", [DONE, "0"], command=COMMAND, deps=[archive])
    result = run(archive, late)
    assert result.success
    [event] = result.asset_materializations_for_node("wheel_archive")
    assert event.metadata["summary"].value == "- 2 days were written"
    assert event.metadata["facts"].value["days"] == 2
    assert result.asset_materializations_for_node("wheel_lateness")


def test_findings_fail_the_run_without_another_try() -> None:
    policy = RetryPolicy(max_retries=2)
    audit = wheel_job_asset("reconcile", [FOUND, "1"], name="audit", command=COMMAND, retry_policy=policy)
    result = run(audit)
    assert not result.success
    failure = result.failure_data_for_node("audit")
    assert "lost: 3" in str(failure.user_failure_data)
    assert not [event for event in result.all_events if event.is_step_restarted]


def test_another_failure_is_tried_again_as_the_policy_says() -> None:
    policy = RetryPolicy(max_retries=2)
    result = run(wheel_job_asset("archive", ["", "1"], command=COMMAND, retry_policy=policy))
    assert not result.success
    assert len([event for event in result.all_events if event.is_step_restarted]) == 2
