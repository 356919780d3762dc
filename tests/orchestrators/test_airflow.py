"""The operator for Airflow, run by Airflow's own test of a DAG."""

from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("airflow.sdk", reason="needs Airflow; make test-orchestrators installs it")

from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from celery_wheel.pipeline.orchestrators import JobFailed
from celery_wheel.pipeline.orchestrators.airflow import WheelJobOperator
from tests.kit.stand_in_job import COMMAND, DONE, FOUND


def operator(*arguments: str, **options: Any) -> WheelJobOperator:
    with DAG("pipeline", schedule="@hourly", start_date=datetime(2026, 1, 1, tzinfo=UTC)):
        return WheelJobOperator(task_id="one", job="archive", arguments=arguments, command=COMMAND, **options)


def test_the_summary_is_the_result_of_the_task() -> None:
    assert operator(DONE, "0").execute({})["days"] == 2


def test_findings_fail_the_task_without_another_try() -> None:
    with pytest.raises(AirflowFailException, match="has findings"):
        operator(FOUND, "1").execute({})


def test_another_failure_may_be_tried_again() -> None:
    with pytest.raises(JobFailed, match="exit code 1"):
        operator("", "1").execute({})


def test_arguments_and_variables_are_rendered_as_templates() -> None:
    task = operator(DONE, "{{ code }}", environment={"DAY": "{{ ds }}"})
    task.render_template_fields({"code": "0", "ds": "2026-11-20"})
    assert (task.arguments, task.environment) == ([DONE, "0"], {"DAY": "2026-11-20"})
    assert task.execute({})["days"] == 2
