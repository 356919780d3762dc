"""Fourteen faults of real schedulers raise their fourteen alerts in a real Prometheus, and no other.

The rules are those of ``example_project/deploy/prometheus/alerts.yaml``, for fifteen installations at once, every
second. Three values differ from production, so that the test takes a minute: every ``for`` and the age of a forgotten
pause is FOR, and ``wheel_objective`` is a second. tests/unit/example/test_alerts.py has the alerts by the durations of
the file.

::

    start the installations ─► all is well: no alert ─► cause the faults ─► each has its alert ─► no other until then
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from tests.integration.monitoring.faults import WELL, Installations, job_of
from tests.kit.patience import patience, wait_until
from tests.kit.processes import ROOT
from tests.kit.servers import absent

DEPLOY = ROOT / "example_project/deploy"

#: In place of every ``for`` of the rules, on a quiet machine; a Redis that restarts, and a takeover, are over before.
FOR_S = 6

#: The fault → its alert, in the order in which they are caused; the last one takes the longest.
ALERTS = {
    "no_holder": "NoHolder",
    "store_down": "StoreDown",
    "clock_skew": "ClockSkew",
    "herd": "Herd",
    "rejected_burst": "RejectedBurst",
    "paused_and_forgotten": "PausedAndForgotten",
    "disk_almost_full": "DiskAlmostFull",
    "queue_growing": "QueueGrowing",
    "broker_down": "BrokerDown",
    "backlog": "Backlog",
    "lease_flapping": "LeaseFlapping",
    "rollback": "Rollback",
    "broker_emptied": "BrokerEmptied",
    "store_rolled_back": "StoreRolledBack",
}

#: A small disk is a tmpfs, which only root may mount.
MAY_MOUNT = os.geteuid() == 0


def fired(found: Installations) -> dict[str, set[str]]:
    firing = 'count_over_time(ALERTS{alertstate="firing",job=~"celery-wheel-.+"}[15m])'
    query = f'label_replace(count by (job, alertname) ({firing}), "name", "$1", "job", "celery-wheel-(.+)")'
    names = dict[str, set[str]]()
    for alert, name in found.prometheus.query(query):
        names.setdefault(name, set()).add(alert.removeprefix("CeleryWheel"))
    return names


@pytest.fixture(scope="module")
def installations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installations]:
    """Cause all faults; returns when every alert fires, and has fired for as long as another would need."""
    folder = tmp_path_factory.mktemp("alerts")
    rules = folder / "alerts.yaml"
    for_s = round(patience(FOR_S))
    text = re.sub(r"for: \d+[smh]\b", f"for: {for_s}s", (DEPLOY / "prometheus/alerts.yaml").read_text())
    rules.write_text(text.replace("> 6 * 3600", f"> {for_s}"))
    faults = [fault for fault in ALERTS if MAY_MOUNT or fault != "disk_almost_full"]
    with ExitStack() as cleanup:
        found = Installations(folder, cleanup, [WELL, *faults], rules)
        held = "count(celery_wheel_holder == 1)"
        wait_until(lambda: found.prometheus.query(held) == {(): len(faults) + 1}, "Prometheus sees all installations")
        found.stacks[WELL].send(0.1, 20)
        found.stacks[WELL].send(40_000)
        assert fired(found) == {}
        for fault in faults:
            getattr(found, fault)(found.stacks[fault])
        with suppress(AssertionError):  # the test of the fault has the failure
            wait_until(lambda: fired(found).keys() >= {*faults}, "every fault raises an alert")
        last_s = found.prometheus.query("vector(time())")[()]
        wait_until(
            lambda: found.prometheus.query("vector(time())")[()] > last_s + for_s, "another alert would fire too"
        )
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("fault", ALERTS)
def test_a_fault_raises_its_alert_and_no_other(installations: Installations, fault: str) -> None:
    if fault == "disk_almost_full" and not MAY_MOUNT:
        absent("the right to mount a small disk")
    assert fired(installations)[fault] == {ALERTS[fault]}


def test_an_installation_that_is_well_raises_none(installations: Installations) -> None:
    assert WELL not in fired(installations)


def test_the_queries_of_the_dashboard_find_something(installations: Installations) -> None:
    text = (DEPLOY / "grafana/celery-wheel.json").read_text()
    for variable, value in {"$__rate_interval": "1m", "$__range": "5m", "$job": job_of(WELL)}.items():
        text = text.replace(variable, value)
    queries = [target["expr"] for panel in json.loads(text)["panels"] for target in panel.get("targets", ())]
    # No schedule has run, no alert is raised, and no task is due within the next hour.
    expected = {
        "celery_wheel_schedule_last_timestamp_seconds",
        "celery_wheel_schedule_skipped_total",
        "celery_wheel_due_peak_timestamp_seconds",
        "ALERTS",
    }

    left = set(queries)

    def empty() -> set[str]:
        """Return the metrics of the queries that have found nothing yet; after a late scrape all find nothing."""
        left.difference_update([query for query in left if installations.prometheus.query(query)])
        return {name for query in left for name in re.findall(r"celery_wheel_\w+|ALERTS", query)}

    with suppress(AssertionError):  # the comparison shows the difference
        wait_until(lambda: empty() <= expected, "all other queries have found something")
    assert empty() == expected
