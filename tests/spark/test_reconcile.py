"""``reconcile``: each kind of finding by the logs of tests and by the wheel's own history, and random planted faults.

::

    PlantedLogs(seed, known)  ─► scheduled, dispatched, executed: lines of logs, in random order
                              └► expected: {(task id, finding)};   rejects: the unreadable lines by reason

A planted task is a list of messages: the first and its retries, each dispatched once and run once within the
tolerances. Then it gets harmless oddities (nulls, other forms of an instant, runs that the broker delivers anew, lines
that are written twice), and none, one or several faults. ``expected`` is known from the planting, and computed from no
log. ``known`` says what the logs tell: ``retries``, ``dispatches``; and ``in_store``, where the messages are those of a
store, which numbers them itself and has all lines of ``dispatched``.

The job finds each planted fault, and nothing else, whatever the logs tell and however odd their lines are.
"""

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from celery_wheel.pipeline.cli import main
from celery_wheel.pipeline.jobs.reconcile import KINDS, audit, findings
from celery_wheel.results.reader import JobResults
from tests.faults import judge as faults
from tests.kit.holder import NOW
from tests.spark.stores import Site, read_history

ETA = "2027-01-15T08:00:00.000Z"


def run_in_process(*arguments: str) -> None:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code in (0, 1), done.output


def log(path: Path, *lines: dict[str, Any] | str) -> str:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return str(path)


@pytest.mark.slow
def test_every_kind_of_finding(spark: SparkSession, tmp_path: Path) -> None:
    """The name of a task is its finding."""
    at, before, after = "2027-01-15T08:00:00.001Z", "2027-01-15T07:59:59.997Z", "2027-01-15T09:00:01+01:00"
    bad = ["lost", "lost_by_worker", "duplicated", "repeated", "dispatched_twice", "early"]
    expected = ["fine", "redelivered", "late", *bad]
    scheduled = log(
        tmp_path / "scheduled.jsonl",
        *({"task_id": name, "eta": ETA} for name in expected),
        {"task_id": "ran_though_cancelled", "eta": ETA, "cancelled": True},
        {"task_id": "cancelled", "eta_ms": 1, "cancelled": True},
        {"task_id": "sending failed", "in_doubt": True},
        {"eta": ETA},
    )
    ran = [name for name in expected if "lost" not in name and name not in ("early", "late")]
    executed = log(
        tmp_path / "executed.jsonl",
        *({"task_id": name, "started": at} for name in [*ran, "ran_though_cancelled", "unknown"]),
        {"task_id": "early", "started": before},
        {"task_id": "late", "started": after},
        {"task_id": "duplicated", "started": at, "wheel_redelivered": False},
        {"task_id": "repeated", "started": at, "wheel_redelivered": True},
        {"task_id": "redelivered", "started": at, "redelivered": True},
        {"task_id": "no time", "started": "yesterday"},
        '{"task_id": "torn',
    )
    names = {*expected, "ran_though_cancelled", "unknown"} - {"lost"}
    dispatched = log(tmp_path / "dispatched.jsonl", *({"task_id": name} for name in [*names, "dispatched_twice"]))
    arguments = ["reconcile", "--scheduled", scheduled, "--executed", executed, "--dispatched", dispatched]
    output = tmp_path / "out"
    done = CliRunner().invoke(main, [*arguments, "--output", str(output), "--late", "1s", "--json"])
    summary = json.loads(done.stdout)
    found = JobResults(output)
    assert [(row["task_id"], row["finding"]) for row in found.rows("findings")] == [
        (kind, kind) for kind in sorted([*bad, "ran_though_cancelled", "unknown"])
    ]
    assert summary["rejects"] == {"no started": 1, "no task_id": 1, "not JSON": 1}
    assert {row["reason"]: row["log"] for row in found.rows("rejects")}["no task_id"] == "scheduled"
    assert (summary["scheduled"], summary["latest_ms"], summary["dispatched"]) == (11, 1_000, 10)
    assert (output / "reconcile.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_an_allowed_finding_is_no_failure(spark: SparkSession, tmp_path: Path) -> None:
    scheduled = log(tmp_path / "s.jsonl", {"task_id": "a", "eta": ETA}, {"task_id": "b", "eta": ETA})
    executed = log(tmp_path / "e.jsonl", *({"task_id": name, "started": ETA} for name in "aab"))
    arguments = ["reconcile", "--scheduled", scheduled, "--executed", executed]
    found = CliRunner().invoke(main, arguments)
    assert (found.exit_code, "duplicated: 1" in found.stdout) == (1, True)
    allowed = CliRunner().invoke(main, [*arguments, "--allow", "duplicated"])
    assert (allowed.exit_code, "duplicated: 1 (allowed)" in allowed.stdout) == (0, True)


@pytest.mark.slow
def test_the_store_names_the_scheduled_and_dispatched_tasks(
    spark: SparkSession, filled: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without logs, the store of the environment is read."""
    ids = [row["task_id"] for row in read_history(filled.url) if row["outcome"] == "dispatched"]
    executed = log(tmp_path / "e.jsonl", *({"task_id": name, "started_ms": NOW + 60} for name in ids[1:]))
    monkeypatch.setenv("CELERY_WHEEL_STORE", filled.url)
    done = CliRunner().invoke(main, ["reconcile", "--executed", executed, "--json"])
    summary = json.loads(done.stdout)
    assert summary["findings"] == {"lost_by_worker": 1}
    assert (summary["dispatched"], summary["ran"], done.exit_code) == (len(set(ids)), len(set(ids)) - 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("logged", [True, False])
def test_a_retry_that_the_log_tells_is_no_finding(spark: SparkSession, one: Site, tmp_path: Path, logged: bool) -> None:
    """The store knows the messages, and not whether the second of them is a retry; a further run is a finding."""
    ids = ("retried", "thrice", "cancelled at last")
    first = [row for name in ids for row in one.holder.accept(NOW, task_id=name)]
    one.dispatch(first, NOW)
    second = [row for name in ids[:2] for row in one.holder.accept(NOW + 60_000, task_id=name)]
    one.dispatch(second, NOW + 60_000)
    [last] = one.holder.accept(NOW + 90_000, task_id=ids[2])
    one.holder.apply(outcomes=[one.holder.outcome(last.id, "cancelled", NOW + 70_000)])
    runs = [(name, 0) for name in ids] + [(name, 1) for name in ids[:2]] + [("thrice", 1)]
    lines = [
        {"task_id": name, "started_ms": NOW + retries * 60_000, **({"retries": retries} if logged else {})}
        for name, retries in runs
    ]
    executed = log(tmp_path / "e.jsonl", *lines)
    output = str(tmp_path / "out")
    arguments = ["reconcile", "--store", one.url, "--executed", executed, "--late", "1s", "--output", output]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1, done.output
    found = [(row["task_id"], row["finding"]) for row in JobResults(output).rows("findings")]
    assert found == [*([] if logged else [("retried", "unproven")]), ("thrice", "duplicated")]


def notes(rng: random.Random, ids: list[str]) -> list[dict[str, Any]]:
    """Random runs of tasks: one or several, marked or not, redelivered or not, early or late."""
    found = []
    for task_id in ids:
        for _ in range(rng.choice([0, 1, 1, 1, 1, 2, 3])):
            delivery, ran_ms = rng.choice("xyz"), NOW + rng.choice([-3, -2, -1, 0, 5, 900])
            # The mark belongs to the message, not to the run.
            marked = delivery != "x" and random.Random(task_id).randrange(3) > 0
            note = {"id": task_id, "delivery": delivery, "redelivered": rng.random() < 0.3, "marked": marked}
            found.append({**note, "args": [NOW], "ran_ms": ran_ms})
    return found


@pytest.mark.slow
@pytest.mark.parametrize("logged", [True, False])
def test_the_job_and_the_judge_of_the_fault_tests_agree(spark: SparkSession, tmp_path: Path, logged: bool) -> None:
    rng = random.Random(5)
    ids = [f"task {number}" for number in range(400)]
    scheduled, in_doubt = ids[:300], ids[300:380]
    noted = notes(rng, ids)
    published = {name: rng.choice([1, 1, 2]) for name in ids if rng.random() < 0.8} if logged else None
    expected = faults.judge(scheduled, in_doubt, noted, published)
    found = faults.audit(tmp_path / "audit", scheduled, in_doubt, noted, published, run_in_process)
    for name in faults.FIELDS.values():
        assert sorted(getattr(found, name)) == sorted(getattr(expected, name)), name
        assert getattr(expected, name) or not logged, f"the logs have none that is {name}"
    assert str(found) == str(expected)


def test_the_functions_take_any_frame(spark: SparkSession) -> None:
    scheduled = spark.sql("select 'a' task_id, timestamp '2027-01-15 08:00' eta, false cancelled, false in_doubt")
    executed = spark.sql(
        "select 'a' task_id, timestamp '2027-01-15 07:00' started, cast(null as timestamp) eta, "
        "false wheel_redelivered, false redelivered, cast(null as string) delivery"
    )
    [row] = findings(audit(scheduled, executed)).collect()
    assert (row.task_id, row.finding, row.messages, row.dispatches) == ("a", "early", 1, None)


CLOCK_MS, LATE_MS = 20, 1_000
HOUR_MS = 3_600_000
#: The fates of tasks, and how often each is chosen; ``retry_…`` is that of the last message alone.
FATES = {"present": 12, "cancelled": 2}
FATES |= dict.fromkeys(("lost", "retry_lost", "not_run", "retry_not_run", "in_doubt", "unknown"), 1)
Line = dict[str, Any]


@dataclass(frozen=True)
class Known:
    retries: bool = True
    dispatches: bool = True
    in_store: bool = False


@dataclass
class SentMessage:
    """A message of a task. ``runs`` are its lines in the log of executed tasks, of which the first may be missing."""

    retries: int
    eta_ms: int
    queue: str
    dispatches: int = 1
    runs: list[Line] = field(default_factory=list)


@dataclass
class PlantedTask:
    id: str
    messages: list[SentMessage]
    etas: str  #: the logs that have its eta: scheduled, executed, both, none
    deliveries: bool
    scheduled: bool = True
    cancelled: bool = False
    in_doubt: bool = False
    findings: set[str] = field(default_factory=set)

    @property
    def first(self) -> SentMessage:
        return self.messages[0]


class PlantedLogs:
    def __init__(self, seed: int, tasks: int, known: Known) -> None:
        self.random, self.known = random.Random(seed), known
        self.scheduled: list[Line | str] = []
        self.dispatched: list[Line | str] = []
        self.executed: list[Line | str] = []
        self.rejects = Counter[str]()
        self.tasks = [self._task(f"task {seed}/{number}") for number in range(tasks)]
        for task in self.tasks:
            self._plant(task)
            self._write(task)
        self.expected = {(task.id, finding) for task in self.tasks for finding in task.findings}
        self._write_unreadable()
        for lines in (self.scheduled, self.dispatched, self.executed):
            self.random.shuffle(lines)

    def chance(self, of: float) -> bool:
        return self.random.random() < of

    def _task(self, name: str) -> PlantedTask:
        count = self.random.choice([1, 1, 1, 2, 3]) if self.known.retries or self.known.in_store else 1
        eta_ms, queue = NOW + self.random.randrange(HOUR_MS), self.random.choice(("mail", "reports", "slow"))
        messages = [SentMessage(number, eta_ms + number * 60_000, queue) for number in range(count)]
        etas = "scheduled" if self.known.in_store else self.random.choice(["scheduled", "executed", "both", "none"])
        task = PlantedTask(name, messages, etas, self.chance(0.5))
        for message in messages:
            late_ms = self.random.choice([-CLOCK_MS, -1, 0, 5, LATE_MS, self.random.randint(-CLOCK_MS, LATE_MS)])
            self._run(task, message, message.eta_ms + late_ms)
        return task

    def _run(self, task: PlantedTask, message: SentMessage, at_ms: int, marked: bool = False) -> None:
        run = {"task_id": task.id, "started_ms": at_ms, "queue": message.queue}
        run |= {"wheel_redelivered": True} if marked else {}
        run |= {"delivery": f"{self.random.random()}"} if task.deliveries else {}
        message.runs.append(run)

    def _repeat_runs(self, task: PlantedTask) -> None:
        """Let the broker deliver a message anew, after a worker that wrote its line or not; write a line twice."""
        for message in task.messages:
            for run in list(message.runs):
                again = {**run, "started_ms": run["started_ms"] + 500, "redelivered": True}
                if task.deliveries and self.chance(0.5):
                    again |= {"delivery": f"{self.random.random()}"}  # as on RabbitMQ, unlike on Redis
                if self.chance(0.15):
                    message.runs.append(again)
                elif self.chance(0.1) and self.known.retries and len(message.runs) == 1:
                    run |= {"redelivered": True}  # the first line is missing
                if task.deliveries and self.chance(0.1):
                    message.runs.append(dict(run))

    def _plant(self, task: PlantedTask) -> None:
        kind = self.random.choices([*FATES], [*FATES.values()])[0]
        if kind.startswith("retry") and (len(task.messages) == 1 or (kind == "retry_lost" and not self.known.retries)):
            kind = "present"
        if not self.known.dispatches:  # nobody can tell one from the other
            kind = kind.replace("not_run", "lost")
        task.scheduled, task.cancelled, task.in_doubt = kind != "unknown", kind == "cancelled", kind == "in_doubt"
        gone = kind in ("lost", "not_run") or (kind in ("cancelled", "in_doubt") and self.chance(0.6))
        # Where only the number of runs is known, a copy takes the place of a message that did not run.
        counted = self.known.in_store and kind == "retry_not_run"
        copies, marks = (0, 0) if gone or counted else self._plant_copies(task)
        if not gone:
            fault = self.random.choice([None] * 6 + ["early", "late"])
            if fault and (task.etas in ("executed", "both") or (task.scheduled and task.etas == "scheduled")):
                by_ms = self.random.choice([1, self.random.randint(1, 40_000)])
                earliest_ms = task.first.eta_ms + (-CLOCK_MS - by_ms if fault == "early" else LATE_MS + by_ms)
                for run in task.first.runs:
                    run["started_ms"] = earliest_ms + (0 if run is task.first.runs[0] else 7)
                task.findings.add(fault)
        for message in task.messages if gone else task.messages[-1:] if kind.startswith("retry") else []:
            message.runs.clear()
            message.dispatches = int("not_run" in kind)
        if "lost" in kind or "not_run" in kind:
            task.findings.add("lost" if "lost" in kind else "lost_by_worker")
        if not gone:
            task.findings |= {kind} & {"unknown"} | ({"ran_though_cancelled"} if task.cancelled else set())
            self._plant_queue(task)
            self._expect_copies(task, copies, marks)
            if self.known.retries or not counted:
                self._repeat_runs(task)
        if self.known.dispatches and task.first.dispatches and self.chance(0.08):
            task.first.dispatches += self.random.randint(1, 2)
            task.findings.add("dispatched_twice")

    def _plant_copies(self, task: PlantedTask) -> tuple[int, int]:
        """Publish the first message several times, perhaps with marks; returns their number, and that of the marks."""
        copies = self.random.choice([0, 0, 0, 0, 1, 2])
        marks = self.random.randint(0, copies)
        for number in range(copies):
            self._run(task, task.first, task.first.runs[0]["started_ms"] + 7, marked=number < marks)
        return copies, marks

    def _expect_copies(self, task: PlantedTask, copies: int, marks: int) -> None:
        ran = sum(bool(message.runs) for message in task.messages)
        surplus = copies if self.known.retries else copies + ran - 1
        if surplus and not self.known.retries and ran > 1 and not copies:
            task.findings.add("unproven")
        elif surplus:
            task.findings.add("repeated" if marks >= surplus else "duplicated")

    def _plant_queue(self, task: PlantedTask) -> None:
        if self.chance(0.1):
            self.random.choice([run for message in task.messages for run in message.runs])["queue"] = "wrong"
            task.findings |= {"wrong_queue"} if task.scheduled else set()

    def _write(self, task: PlantedTask) -> None:
        flags = {"cancelled": task.cancelled, "in_doubt": task.in_doubt}
        for message in task.messages:
            number = {"retries": message.retries} if self.known.retries else {}
            eta = {"eta_ms": message.eta_ms} if task.etas in ("scheduled", "both") else {}
            line = {"task_id": task.id, "queue": message.queue, **number, **eta, **flags}
            if task.scheduled and (self.known.retries or message is task.first):
                self.scheduled.append(self._odd(line))
                if eta and self.chance(0.1):  # scheduled twice: the later eta counts
                    self.scheduled.append(self._odd({**line, "eta_ms": message.eta_ms - 5_000}))
            self.dispatched += [self._odd({"task_id": task.id, **number}) for _ in range(message.dispatches)]
            eta = {"eta_ms": message.eta_ms} if task.etas in ("executed", "both") else {}
            self.executed += [self._odd({**run, **number, **eta}) for run in message.runs]

    def _odd(self, line: Line) -> Line:
        """Write a line in another form: false as null or not at all, an instant as a text."""
        for name in [name for name, value in line.items() if value is False]:
            form = self.random.choice(["false", "null", "absent"])
            line = {key: value for key, value in line.items() if key != name or form != "absent"}
            line |= {name: None} if form == "null" else {}
        for name in ("eta", "started"):
            if f"{name}_ms" in line and self.chance(0.5):
                ms = line.pop(f"{name}_ms")
                zone = self.random.choice([UTC, timezone(timedelta(hours=-7)), timezone(timedelta(minutes=345)), None])
                at = datetime.fromtimestamp(ms // 1_000, zone or UTC) + timedelta(milliseconds=ms % 1_000)
                line[name] = (at if zone else at.replace(tzinfo=None)).isoformat()
        return dict(self.random.sample(list(line.items()), len(line)))

    def _write_unreadable(self) -> None:
        for log, name in ((self.scheduled, "scheduled"), (self.executed, "executed")):
            for line, reason in (
                ("{", "not JSON"),
                ('{"task_id": "torn', "not JSON"),
                ({"task_id": None, "started_ms": NOW}, "no task_id"),
                ({"task_id": f"unread {name}", "started": "yesterday"}, "no started"),
                ({"task_id": f"unread {name}"}, "no started"),
            ):
                if self.chance(0.7) and (reason != "no started" or name == "executed"):
                    log.append(line)
                    self.rejects[reason] += 1


TASKS = 600


def reconcile(folder: Path, logs: PlantedLogs, *more: str) -> JobResults:
    arguments = ["--clock", f"{CLOCK_MS}ms", "--late", f"{LATE_MS}ms", "--output", str(folder / "out"), *more]
    for name in ("scheduled", "dispatched", "executed"):
        if name != "dispatched" or (logs.known.dispatches and not logs.known.in_store):
            arguments += [f"--{name}", log(folder / f"{name}.jsonl", *getattr(logs, name))]
    done = CliRunner().invoke(main, ["reconcile", *arguments])
    assert done.exit_code == 1, done.output
    return JobResults(folder / "out")


def assert_found(found: JobResults, logs: PlantedLogs) -> None:
    rows = Counter((row["task_id"], row["finding"]) for row in found.rows("findings"))
    assert rows == Counter(logs.expected), (logs.expected ^ {*rows}, [*rows.values()].count(2))
    assert found.summary["rejects"] == logs.rejects


@pytest.mark.slow
@pytest.mark.parametrize(
    ("known", "absent"),
    [
        (Known(), {"unproven"}),
        (Known(retries=False), {"unproven"}),
        (Known(dispatches=False), {"unproven", "lost_by_worker", "dispatched_twice"}),
    ],
    ids=["all", "no retries", "no dispatches"],
)
def test_planted_faults_are_found_in_logs(spark: SparkSession, tmp_path: Path, known: Known, absent: set[str]) -> None:
    logs = PlantedLogs(7, TASKS, known)
    assert {finding for _, finding in logs.expected} == {*KINDS} - absent
    assert_found(reconcile(tmp_path, logs), logs)


def fill_store(one: Site, logs: PlantedLogs) -> None:
    """Accept the messages that were dispatched, dispatch each as often, and leave others pending or stopped."""
    sent = [(task, message) for task in logs.tasks for message in task.messages if message.dispatches]
    for times in range(1, 4):  # those that are dispatched twice are in a range of their own, and so on
        rows = []
        for task, message in sent:
            if message.dispatches == times:
                parts = {"task_id": task.id, "queue": message.queue, "eta_ms": message.eta_ms}
                rows.append(one.holder.row(NOW + times * HOUR_MS, **parts))
        one.holder.apply(rows=rows)
        start = one.store.lanes(0)[0].offset
        for _ in range(times):
            one.holder.put_offset(start)
            one.dispatch(rows, NOW + times * HOUR_MS)
    for kind in ("expired", "rejected"):
        [row] = one.holder.accept(NOW + 9 * HOUR_MS, task_id=f"task of the store, {kind}")
        one.holder.apply(moves=[one.holder.stop(row)], outcomes=[one.holder.outcome(row.id, kind)])
    one.holder.accept(NOW + 9 * HOUR_MS, task_id="task of the store, pending")


@pytest.mark.slow
@pytest.mark.parametrize("retries", [True, False], ids=["retries", "no retries"])
def test_planted_faults_are_found_beside_a_store(spark: SparkSession, one: Site, tmp_path: Path, retries: bool) -> None:
    """The log says what was scheduled, the store what was dispatched: its messages have numbers of their own."""
    logs = PlantedLogs(8, TASKS, Known(retries=retries, in_store=True))
    fill_store(one, logs)
    found = reconcile(tmp_path, logs, "--store", one.url)
    assert {finding for _, finding in logs.expected} == {*KINDS} - ({"unproven"} if retries else set())
    assert_found(found, logs)
