"""The alert rules and the dashboard: their syntax, the metrics that they name, and the timing of each alert.

``promtool test rules`` evaluates the rules over hours of samples: an installation of two schedulers is well for half an
hour, and then a fault begins. tests/integration/monitoring/test_alerts.py raises the alerts by real faults.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from celery_wheel.metrics.samples import METRICS, Kind
from tests.kit.manual import anchors
from tests.kit.processes import ROOT
from tests.kit.servers.prometheus import promtool

DEPLOY = ROOT / "example_project/deploy"
RULES_FILE = DEPLOY / "prometheus/alerts.yaml"
RULES: list[dict[str, Any]] = yaml.safe_load(RULES_FILE.read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((DEPLOY / "grafana/celery-wheel.json").read_text())

#: Minutes before a fault begins.
WELL_MIN = 30

#: Series of a job → their values while all is well, as promtool writes them: a+bxc is a rise by b a sample.
WELL = {
    'up{instance="a"}': "1",
    'up{instance="b"}': "1",
    'celery_wheel_holder{instance="a",shard="0"}': "1",
    'celery_wheel_holder{instance="b",shard="0"}': "0",
    'celery_wheel_reachable{instance="a",side="broker"}': "1",
    'celery_wheel_reachable{instance="a",side="store"}': "1",
    'celery_wheel_reachable{instance="b",side="broker"}': "1",
    'celery_wheel_reachable{instance="b",side="store"}': "1",
    'celery_wheel_clock_skew_seconds{instance="a",shard="0"}': "-0.02",
    'celery_wheel_clock_disputed_seconds{instance="a",shard="0"}': "0",
    'celery_wheel_clock_halted{instance="a",shard="0"}': "0",
    'celery_wheel_oldest_overdue_seconds{instance="a"}': "0.4",
    'celery_wheel_objective_seconds{instance="a"}': "30",
    'celery_wheel_due_peak{instance="a"}': "20000",
    'celery_wheel_accepted_total{instance="a",shard="0"}': "0+1000",
    'celery_wheel_rejected_total{instance="a",shard="0",reason="unreadable"}': "3+0",
    'celery_wheel_rejected_total{instance="a",shard="0",reason="unique"}': "0+100",
    'celery_wheel_store_disk_bytes{instance="a"}': "1e11",
    'celery_wheel_store_disk_free_bytes{instance="a"}': "4e10",
    'celery_wheel_store_oldest_transaction_seconds{instance="a"}': "0.01",
    'celery_wheel_wheel_queue_age_seconds{instance="a",shard="0"}': "0.1",
    'celery_wheel_epoch{instance="a",shard="0"}': "7",
    'celery_wheel_broker_rollbacks_total{instance="a",shard="0"}': "0",
    'celery_wheel_broker_emptied_total{instance="a",shard="0"}': "0",
    'celery_wheel_store_lost_total{instance="a",shard="0"}': "0",
}

_GONE = dict.fromkeys(WELL, "_")
_DOWN = {series: "0" if series.startswith("up") else "_" for series in WELL}
_HOLDER = 'celery_wheel_holder{instance="a",shard="0"}'
_OVERDUE = 'celery_wheel_oldest_overdue_seconds{instance="a"}'
_UNREADABLE = 'celery_wheel_rejected_total{instance="a",shard="0",reason="unreadable"}'
_AGE = 'celery_wheel_wheel_queue_age_seconds{instance="a",shard="0"}'
_PAUSED_SINCE = 'celery_wheel_paused_since_timestamp_seconds{instance="a",kind="queue"}'
_EPOCH = 'celery_wheel_epoch{instance="a",shard="0"}'
_ROLLBACKS = 'celery_wheel_broker_rollbacks_total{instance="a",shard="0"}'
_EMPTIED = 'celery_wheel_broker_emptied_total{instance="a",shard="0"}'
_LOST = 'celery_wheel_store_lost_total{instance="a",shard="0"}'
_NO_BROKER = {f'celery_wheel_reachable{{instance="{one}",side="broker"}}': "0" for one in "ab"}
_NO_STORE = {f'celery_wheel_reachable{{instance="{one}",side="store"}}': "0" for one in "ab"}

#: The fault → its alert or none, and the series that change. Their values are those of all samples from then on.
FAULTS: dict[str, tuple[str, Mapping[str, str]]] = {
    "nothing": ("", {}),
    "no scheduler answers": ("NoHolder", _DOWN),
    "Prometheus knows no scheduler": ("NoHolder", _GONE),
    "the schedulers hold no shard": ("NoHolder", {_HOLDER: "0", _OVERDUE: "_", _AGE: "_", _EPOCH: "_"}),
    "the broker is down, and tasks are due": ("BrokerDown", {**_NO_BROKER, _OVERDUE: "0+15", _AGE: "_"}),
    "one scheduler does not reach the broker": (
        "BrokerDown",
        {'celery_wheel_reachable{instance="b",side="broker"}': "0"},
    ),
    "the store is down, and leases are over": ("StoreDown", {**_NO_STORE, _HOLDER: "0", _OVERDUE: "_", _EPOCH: "_"}),
    "due time is off": ("ClockSkew", {'celery_wheel_clock_skew_seconds{instance="a",shard="0"}': "-2.5"}),
    "the wall clock is disputed": ("ClockSkew", {'celery_wheel_clock_disputed_seconds{instance="a",shard="0"}': "-60"}),
    "the clock stops the scheduler": (
        "ClockSkew",
        {'celery_wheel_clock_halted{instance="a",shard="0"}': "1", _HOLDER: "0", _OVERDUE: "_", _EPOCH: "_"},
    ),
    "tasks are overdue": ("Backlog", {_OVERDUE: "31"}),
    "tasks are overdue within the objective": ("", {_OVERDUE: "29"}),
    "a herd comes": ("Herd", {'celery_wheel_due_peak{instance="a"}': "300001"}),
    "messages are rejected": ("RejectedBurst", {_UNREADABLE: "3+100"}),
    "few messages are rejected": ("", {_UNREADABLE: "3+9"}),
    "a queue is paused": ("PausedAndForgotten", {_PAUSED_SINCE: str(60 * WELL_MIN)}),
    "a queue is paused, and the schedulers are deployed anew": (
        "PausedAndForgotten",
        {_PAUSED_SINCE: f"{60 * WELL_MIN}x1000 _x60 {60 * WELL_MIN}"},
    ),
    "the disk is almost full": ("DiskAlmostFull", {'celery_wheel_store_disk_free_bytes{instance="a"}': "9e9"}),
    "a transaction stays open": (
        "OpenTransaction",
        {'celery_wheel_store_oldest_transaction_seconds{instance="a"}': "3601+15"},
    ),
    "messages are not accepted": ("QueueGrowing", {_AGE: "31"}),
    "the shard changes hands all the time": ("LeaseFlapping", {_EPOCH: "8+1"}),
    "the schedulers were deployed anew": ("", {_EPOCH: "8 8 9 9 9 9 10 10+0"}),
    "the broker lost writes": ("Rollback", {_ROLLBACKS: "1"}),
    "a scheduler starts and finds that the broker lost writes": (
        "Rollback",
        {_ROLLBACKS: "_", _ROLLBACKS.replace('"a"', '"c"'): "2"},
    ),
    "the broker was emptied": ("BrokerEmptied", {_EMPTIED: "1"}),
    "the store was rolled back": ("StoreRolledBack", {_LOST: "89"}),
    "a scheduler starts and finds that the store was rolled back": (
        "StoreRolledBack",
        {_LOST: "_", _LOST.replace('"a"', '"c"'): "2"},
    ),
    "a scheduler starts and finds that the broker was emptied": (
        "BrokerEmptied",
        {_EMPTIED: "_", _EMPTIED.replace('"a"', '"c"'): "1"},
    ),
}

#: The fault → minutes from its begin until its alert fires, where these are not those of ``for``.
AFTER_MIN = {
    **{"messages are rejected": 1.0, "the shard changes hands all the time": 1.0, "a herd comes": 1.0},
    **{"a queue is paused": 360.0, "a queue is paused, and the schedulers are deployed anew": 360.0},
}


def minutes(duration: str) -> float:
    number, unit = re.fullmatch(r"(\d+)([smh])", duration).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1 / 60, "m": 1, "h": 60}[unit]


def rule_of(alert: str) -> dict[str, Any]:
    return next(rule for rule in RULES if rule["alert"] == f"CeleryWheel{alert}")


def values(well: str, faulty: str) -> str:
    """Return samples of each quarter of a minute: half an hour while all is well, and 8 hours of the fault."""
    before = f"{well}x{4 * WELL_MIN - 1}" if well else f"_x{4 * WELL_MIN}"
    if faulty == "_":
        return f"{before} stale _x2000"
    *steps, last = faulty.split()
    return " ".join([before, *steps, f"{last}x2000"])


def input_series(changes: Mapping[str, str], job: str = "celery-wheel") -> Iterator[dict[str, str]]:
    for series in {**WELL, **changes}:
        name, labels = series[:-1].split("{")
        well = WELL.get(series, "")
        text = values(well, changes[series]) if series in changes else f"{well}x3000"
        yield {"series": f'{name}{{job="{job}",{labels}}}', "values": text}


def expected(fault: str) -> Iterator[dict[str, Any]]:
    """Yield what fires just before the alert is due, when it is due, and later."""
    alert, _ = FAULTS[fault]
    after_min = minutes(rule_of(alert).get("for", "0s")) if alert else 0.0
    after_min = AFTER_MIN.get(fault, after_min)
    fires = [{"labels": f'{{alertname="CeleryWheel{alert}"}}', "value": 1}] if alert else []
    moments = {after_min + 0.25: fires, after_min + 10: fires}
    if after_min >= 1:
        moments[after_min - 0.75] = []
    for after, samples in sorted(moments.items()):
        yield {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": f"{round((WELL_MIN + after) * 60)}s",
            "exp_samples": samples,
        }


@pytest.mark.slow
def test_each_alert_fires_for_its_faults_after_its_time_and_no_other_alert_fires(tmp_path: Path) -> None:
    tests = [
        {
            "name": fault,
            "interval": "15s",
            "input_series": list(input_series(changes)),
            "promql_expr_test": list(expected(fault)),
        }
        for fault, (_, changes) in FAULTS.items()
    ]
    path = tmp_path / "test.json"
    path.write_text(json.dumps({"rule_files": [str(RULES_FILE)], "evaluation_interval": "15s", "tests": tests}))
    found = promtool("test", "rules", str(path))
    assert not found, found


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", ["nothing", "Prometheus knows no scheduler", "a queue is paused", "tasks are overdue"]
)
def test_the_rules_work_for_pods_that_are_found_by_annotations(tmp_path: Path, fault: str) -> None:
    """The job of such pods has a name of its own: an alert about a missing job would be raised for ever."""
    changes = FAULTS[fault][1]
    test = {
        "name": fault,
        "interval": "15s",
        "input_series": list(input_series(changes, "kubernetes-pods")),
        "promql_expr_test": list(expected(fault)),
    }
    path = tmp_path / "test.json"
    path.write_text(json.dumps({"rule_files": [str(RULES_FILE)], "evaluation_interval": "15s", "tests": [test]}))
    assert promtool("test", "rules", str(path)) == ""


def test_the_faults_raise_every_alert() -> None:
    raised = {alert for alert, _ in FAULTS.values()} - {""}
    assert {f"CeleryWheel{alert}" for alert in raised} == {rule["alert"] for rule in RULES}
    assert len(RULES) == 15


def test_prometheus_accepts_the_rules_and_the_configuration() -> None:
    assert promtool("check", "rules", str(RULES_FILE)) == ""
    assert promtool("check", "config", str(DEPLOY / "prometheus/prometheus.yaml")) == ""


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule["alert"]) for rule in RULES])
def test_an_alert_says_what_to_do_and_links_its_runbook(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    page, anchor = rule["annotations"]["runbook_url"].split("#")
    assert anchor in anchors((ROOT / page).read_text())
    assert anchor.replace("-", "") in rule["alert"].lower()


#: The suffixes that Prometheus adds to the name of a metric.
SUFFIXES = {Kind.COUNTER: ["_total"], Kind.GAUGE: [""], Kind.HISTOGRAM: ["_bucket", "_sum", "_count"]}


def queries() -> Iterator[str]:
    yield from (rule["expr"] for rule in RULES)
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (variable["query"] for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query")


def series_names() -> dict[str, set[str]]:
    found = dict[str, set[str]]()
    for metric in METRICS.values():
        labels = {*metric.labels, "job", "instance"}
        for suffix in SUFFIXES[metric.kind]:
            found[metric.full_name + suffix] = labels | ({"le"} if suffix == "_bucket" else set())
    return found


@pytest.mark.parametrize("query", sorted(set(queries())))
def test_a_query_names_metrics_and_labels_that_exist(query: str) -> None:
    known = series_names() | {"up": {"job", "instance"}, "ALERTS": {"alertname", "alertstate", "job", "severity"}}
    named = re.findall(r"\b(celery_wheel_\w+|up(?=\{)|ALERTS)(?:\{(.*?)\})?", query)
    assert named
    for name, matchers in named:
        assert name in known, name
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) <= known[name], query
    labels = {label for name, _ in named for label in known[name]}
    for grouped in re.findall(r"\b(?:by|on|without)\s*\(([^)]*)\)", query):
        assert {label.strip() for label in grouped.split(",")} <= labels, query


def test_the_dashboard_draws_every_counter_that_an_alert_reads() -> None:
    drawn = " ".join(target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ()))
    read = {name for rule in RULES for name in re.findall(r"celery_wheel_\w+_total", rule["expr"])}
    assert [name for name in sorted(read) if name not in drawn] == []


def test_every_query_of_the_dashboard_is_promql(tmp_path: Path) -> None:
    variables = {"$__rate_interval": "1m", "$__range": "1h", "$job": "celery-wheel", "$shard": ".*"}
    rules = []
    for query in queries():
        if query.startswith("label_values("):
            continue
        for name, value in variables.items():
            query = query.replace(name, value)
        rules.append({"record": "checked", "expr": query})
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"groups": [{"name": str(n), "rules": [rule]} for n, rule in enumerate(rules)]}))
    assert promtool("check", "rules", str(path)) == ""


def test_the_panels_have_titles_units_and_places_of_their_own() -> None:
    places = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & places, panel["title"]
        places |= cells
        assert max(x for x, _ in cells) < 24, panel["title"]
        assert panel["title"]
        if panel["type"] != "row":
            assert panel["description"]
            assert panel["datasource"]["uid"] == "${datasource}"
            assert "unit" in panel["fieldConfig"]["defaults"] or panel["type"] == "table", panel["title"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
