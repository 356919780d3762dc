"""The judge of a soak: what was sent, asked and answered, against what arrived; in SQL, so that its memory is small.

::

    has to arrive        the broker accepted it, it is due, and no cancel was answered otherwise than too_late;
                         a cancel that no scheduler answered in time was withdrawn, and does nothing
    must not arrive      its cancel was answered done, already or unknown
    may or may not       its sending failed, or its cancel did: nobody was told what became of it

Order: tasks of one key arrive by their due times. A task that was accepted by the wheel after a later one was
dispatched is behind it, and when the wheel accepts is not seen from outside; but by the depths of its queues, all
that was sent before one moment had been accepted before a later one. So a task is out of order when a task of its key
arrived before it that is due after both, itself and that later moment. Marked copies have no order.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from statistics import linear_regression
from typing import Any

from tests.faults.instants import Arrival, InstantVerdict, Plan, judge_instants
from tests.faults.judge import CLOCK_MS
from tests.soak.gauges import EVERY_S
from tests.soak.ledger import Ledger, task_id
from tests.soak.load import KEYS, OLD, SCHEDULERS, SHARDS

HOUR_MS, MINUTE_MS = 3_600_000, 60_000

#: Part of a run in which caches fill and pools grow.
WARM_UP = 0.15

#: Figures that may grow → so much at once, and so much an hour. An outage fills the window of each shard, up to
#: ``wheel_window_bytes``, and an allocator keeps what it once had.
BOUNDS = {
    f"rss of {OLD}": (SHARDS * 2**26, 16e6),
    f"descriptors of {OLD}": (12, 2),
    f"threads of {OLD}": (6, 1),
    "files": (4, 2),
    **{f"log of {name}": (500e3, 3e6) for name in SCHEDULERS},
}

_DUE = "s.accepted_ms IS NOT NULL AND s.due_ms <= :upto AND (c.number IS NULL OR c.answer IN ('too_late', 'withdrawn'))"
_MISSING = f"""
    FROM sends s LEFT JOIN cancels c ON c.number = s.number WHERE s.number >= :first AND {_DUE}
    AND NOT EXISTS (SELECT 1 FROM arrivals a WHERE a.number = s.number)
"""
_EARLY = f"FROM arrivals a JOIN sends s ON s.number = a.number WHERE a.at_ms < s.due_ms - {CLOCK_MS}"
_CANCELLED = """
    FROM arrivals a JOIN cancels c ON c.number = a.number WHERE c.answer IN ('done', 'already', 'unknown')
"""
_STRANGE = "FROM arrivals a WHERE NOT EXISTS (SELECT 1 FROM sends s WHERE s.number = a.number)"
#: A message that is delivered anew has its former publication.
_COPIES = """
    FROM (SELECT number, count(*) AS copies, sum(marked) AS marked FROM
        (SELECT DISTINCT number, publication, marked FROM arrivals WHERE number IN
            (SELECT number FROM arrivals GROUP BY number HAVING count(*) > 1))
    GROUP BY number HAVING count(*) > 1)
"""


@dataclass(slots=True)
class Growth:
    name: str
    grown: float  #: by the line through the samples
    allowed: float

    def __str__(self) -> str:
        return f"{self.name}: {self.grown:+,.0f} (at most {self.allowed:,.0f})"


@dataclass(slots=True)
class Verdict:
    sent: int = 0
    in_doubt: int = 0  #: sending failed
    arrived: int = 0
    cancels: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    twice: int = 0
    twice_unmarked: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)  #: arrived although it was cancelled
    strange: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    compared: int = 0  #: tasks whose place in the order could be judged
    instants: InstantVerdict = field(default_factory=InstantVerdict)
    instants_twice: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    growth: list[Growth] = field(default_factory=list)
    late_ms: dict[str, int] = field(default_factory=dict)  #: of this run: median, 99 of 100, most

    @property
    def findings(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("lost", "early", "twice_unmarked", "cancelled", "strange", "out_of_order")
        }
        found |= {f"instants {name}": getattr(self.instants, name) for name in ("missing", "strange", "early")}
        found["instants twice"] = self.instants.twice
        found["growth"] = [str(one) for one in self.growth if one.grown > one.allowed]
        return {name: rows for name, rows in found.items() if rows}

    def figures(self) -> dict[str, Any]:
        """Return all figures, with some examples of each finding."""
        counts = {name: value for name, value in asdict(self).items() if not isinstance(value, list)}
        counts["instants"] = {"expected": self.instants.expected, "late_ms": self.instants.late_ms}
        counts["growth"] = [str(one) for one in self.growth]
        return {**counts, "findings": {name: [len(rows), *rows[:5]] for name, rows in self.findings.items()}}


def missing(ledger: Ledger, upto_ms: int, first: int = 0) -> int:
    """Return how many tasks that are due have not arrived, of those from a number on."""
    return int(ledger.read(f"SELECT count(*) {_MISSING}", upto=upto_ms, first=first)[0][0])


def instants(ledger: Ledger, run: int) -> set[tuple[str, int]]:
    return set(ledger.read("SELECT name, instant_ms FROM occurrences WHERE name GLOB ?", f"{run}: *"))


def judge(ledger: Ledger, run: int, plans: Sequence[Plan], *, exactly_once: bool) -> Verdict:
    """Judge all that has happened up to the end of a run: tasks over all runs, schedules of this one.

    Args:
        exactly_once: whether the broker takes each message once; otherwise a marked copy is allowed.
    """
    [(began_ms, asked_ms, answered_ms, ended_ms)] = ledger.read(
        "SELECT began_ms, asked_ms, answered_ms, ended_ms FROM runs WHERE run = ?", run
    )
    unmarked = "" if exactly_once else "WHERE marked < copies - 1"
    verdict = Verdict(
        sent=ledger.one("SELECT count(*) FROM sends WHERE accepted_ms IS NOT NULL"),
        in_doubt=ledger.one("SELECT count(*) FROM sends WHERE accepted_ms IS NULL"),
        arrived=ledger.one("SELECT count(DISTINCT number) FROM arrivals"),
        cancels=dict(ledger.read("SELECT coalesce(answer, 'in doubt'), count(*) FROM cancels GROUP BY 1")),
        lost=_ids(ledger.read(f"SELECT s.number {_MISSING}", upto=ended_ms, first=0)),
        early=_ids(ledger.read(f"SELECT a.number {_EARLY}")),
        twice=ledger.one(f"SELECT count(*) {_COPIES}"),
        twice_unmarked=_ids(ledger.read(f"SELECT number {_COPIES} {unmarked}")),
        cancelled=_ids(ledger.read(f"SELECT a.number {_CANCELLED}")),
        strange=_ids(ledger.read(f"SELECT a.number {_STRANGE}")),
        faults=dict(ledger.read("SELECT kind, count(*) FROM faults GROUP BY kind ORDER BY kind")),
        growth=list(_growth(ledger, run)),
    )
    _judge_instants(ledger, verdict, plans, exactly_once, (asked_ms, answered_ms, ended_ms))
    _judge_order(ledger, verdict)
    _measure_lateness(ledger, verdict, run, began_ms)
    return verdict


def _ids(rows: Iterable[Sequence[int]]) -> list[str]:
    return [task_id(row[0]) for row in rows]


def _judge_instants(
    ledger: Ledger, verdict: Verdict, plans: Sequence[Plan], exactly_once: bool, times: tuple[int, int, int]
) -> None:
    query = f"""
        SELECT name, instant_ms, min(at_ms), {"count(DISTINCT publication)" if exactly_once else "1"},
            count(DISTINCT publication), sum(marked)
        FROM occurrences WHERE name = ? GROUP BY instant_ms
    """
    arrivals: list[Arrival] = []
    for plan in plans:
        for name, instant_ms, at_ms, count, copies, marked in ledger.read(query, plan.name):
            unmarked = count if exactly_once else max(1, copies - marked)
            arrivals += [Arrival(name, instant_ms, at_ms, "")] * unmarked
            verdict.instants_twice += copies > 1
    verdict.instants = judge_instants(plans, arrivals, *times)


def _judge_order(ledger: Ledger, verdict: Verdict) -> None:
    moments = _moments_of_acceptance(ledger)
    latest = dict.fromkeys(range(KEYS), 0)
    query = """
        SELECT a.number, s.due_ms, s.accepted_ms, a.marked FROM arrivals a JOIN sends s ON s.number = a.number
        ORDER BY a.place
    """
    with closing(ledger.reader()) as rows:
        for number, due_ms, accepted_ms, marked in rows.execute(query):
            key = number % KEYS
            if not marked and accepted_ms is not None:
                at = bisect_left(moments, (accepted_ms, 0))
                known_ms = moments[at][1] if at < len(moments) else None
                verdict.compared += known_ms is not None and known_ms <= due_ms
                if known_ms is not None and latest[key] > max(due_ms, known_ms) and _is_first(ledger, number):
                    verdict.out_of_order.append(task_id(number))
            latest[key] = max(latest[key], due_ms)


def _is_first(ledger: Ledger, number: int) -> bool:
    """Whether a task has one arrival, so that this is no second delivery."""
    return bool(ledger.one("SELECT count(*) FROM arrivals WHERE number = ?", number) == 1)


def _moments_of_acceptance(ledger: Ledger) -> list[tuple[int, int]]:
    """Return rising pairs of moments: everything sent before the first one was accepted before the second one.

    A wheel queue is read from its front. So where more was sent into it since the first moment than it can have left at
    the second one, all that was sent before has been accepted. Half of the tasks are in each of two shards.
    """
    rows = ledger.read("SELECT accepted_ms / 1000, count(*) FROM sends WHERE accepted_ms > 0 GROUP BY 1 ORDER BY 1")
    seconds, counts = [row[0] for row in rows], list(accumulate(row[1] for row in rows))
    found = [(0, 0)]
    for at_ms, left in ledger.read("SELECT at_ms, value FROM samples WHERE name = 'not accepted' ORDER BY at_ms"):
        upto = bisect_left(seconds, at_ms // 1_000) - 1
        if upto >= 0 and counts[upto] > SHARDS * left:
            before = bisect_left(counts, counts[upto] - SHARDS * left)
            if (before_ms := 1_000 * seconds[before]) > found[-1][0]:
                found.append((before_ms, at_ms + int(1_000 * EVERY_S)))
    return found


def _growth(ledger: Ledger, run: int) -> Iterable[Growth]:
    for name, (at_once, an_hour) in BOUNDS.items():
        rows = ledger.read("SELECT at_ms, value FROM samples WHERE run = ? AND name = ? ORDER BY at_ms", run, name)
        rows = rows[int(WARM_UP * len(rows)) :]
        if len(rows) > 2:
            times, values = zip(*rows, strict=True)
            hours = (times[-1] - times[0]) / HOUR_MS
            slope, _ = linear_regression([(at_ms - times[0]) / HOUR_MS for at_ms in times], values)
            yield Growth(name, slope * hours, at_once + an_hour * hours)


def _measure_lateness(ledger: Ledger, verdict: Verdict, run: int, began_ms: int) -> None:
    """Write the lateness of each minute among the samples; it is that of the consumer, and its look is 20 ms."""
    ledger.write("DELETE FROM samples WHERE run = ? AND name LIKE 'late %'", [(run,)])
    query = """
        SELECT s.due_ms / ?, a.at_ms - s.due_ms FROM arrivals a JOIN sends s ON s.number = a.number
        WHERE a.at_ms >= ? AND s.due_ms >= ? ORDER BY 1, 2
    """
    minutes: dict[int, list[int]] = {}
    everything: list[int] = []
    with closing(ledger.reader()) as rows:
        for minute, late_ms in rows.execute(query, (MINUTE_MS, began_ms, began_ms)):
            minutes.setdefault(minute, []).append(late_ms)
            everything.append(late_ms)
    for minute, lates in minutes.items():
        figures = [(run, minute * MINUTE_MS, f"late {name}", value) for name, value in _three(lates).items()]
        ledger.write("INSERT INTO samples VALUES (?, ?, ?, ?)", figures)
    verdict.late_ms = _three(sorted(everything)) if everything else {}


def _three(lates: Sequence[int]) -> dict[str, int]:
    return {"median": lates[len(lates) // 2], "99 of 100": lates[len(lates) * 99 // 100], "most": lates[-1]}
