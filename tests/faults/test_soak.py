"""The soak in a short form: one fault, an outage of seconds, and a second run that goes on with the first one's folder.

``make soak`` runs for hours. The judge is tried on ledgers with a broken promise each.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import instants
from tests.soak import gauges
from tests.soak.judge import judge
from tests.soak.ledger import Ledger, number_of, task_id
from tests.soak.load import KEYS
from tests.soak.run import Plan, Run

SHORT = Plan(seconds=10, outage_s=3, rate=40, fault_every_s=3, longest_s=2)


@pytest.fixture
def kept() -> Iterator[Path]:
    """Return a folder in which PostgreSQL can be another user, where tests run as root; pytest's own are closed."""
    with tempfile.TemporaryDirectory(prefix="wheel-soak-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder) / "kept"


@pytest.mark.slow
def test_a_second_run_goes_on_with_the_folder_of_the_first(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "EVERY_S", 1.0)
    verdicts, runs = [], []
    for _ in range(2):
        run = Run("postgresql-redis", kept, SHORT)
        runs.append((run.number, run.outage_of))
        verdicts.append(run())
        assert not verdicts[-1].findings, verdicts[-1].figures()
    first, second = verdicts
    assert runs == [(1, "store"), (2, "broker")]
    assert second.sent > first.sent > 0
    assert second.arrived > first.arrived > 0
    assert second.faults["outage of the store"] == second.faults["outage of the broker"] == 1
    assert sum(second.faults.values()) > 3, second.faults
    assert second.instants.expected > 20
    assert b"<svg" in (kept / "soak.svg").read_bytes()[:1_000]


SCHEDULE = instants.Plan(3, copy=1)

ARRIVE = "INSERT INTO arrivals (place, number, at_ms, publication, marked) VALUES (?, ?, ?, ?, ?)"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A run in which all went well: tasks that are due a millisecond after each other, and one schedule."""
    ledger = Ledger(tmp_path / "ledger.sqlite3")
    ledger.write("INSERT INTO runs VALUES (1, 0, 7, '', 'broker', 0, 0, 200000, NULL)", [()])
    numbers = [one * KEYS for one in range(1, 201)]
    ledger.write("INSERT INTO sends VALUES (?, ?, 1000)", [(one, 100_000 + one) for one in numbers])
    ledger.write(ARRIVE, [(one, one, 100_005 + one, one, 0) for one in numbers])
    # Others, which are not due: so many are behind the first ones that those have been accepted.
    ledger.write("INSERT INTO sends VALUES (?, 900000, ?)", [(10_000 + one, 20_000 + 50 * one) for one in range(500)])
    ledger.write("INSERT INTO samples VALUES (1, ?, 'not accepted', 5)", [(one,) for one in range(0, 60_000, 10_000)])
    rows = [(SCHEDULE.name, at_ms, at_ms + 10, at_ms) for at_ms in SCHEDULE.between(0, 200_000)]
    ledger.write("INSERT INTO occurrences VALUES (NULL, ?, ?, ?, ?, 0)", rows)
    yield ledger
    ledger.close()


def test_the_judge_finds_nothing_where_nothing_is_wrong(ledger: Ledger) -> None:
    ledger.write("DELETE FROM arrivals WHERE number IN (8, 16, 24)", [()])
    ledger.write(
        "INSERT INTO cancels VALUES (?, 1, 2, ?)", [(8, "done"), (16, None), (32, "too_late"), (40, "withdrawn")]
    )
    ledger.write("UPDATE sends SET accepted_ms = NULL WHERE number = 24", [()])
    ledger.write(ARRIVE, [(9_998, 80, 200_000, 80, 0)])  # the same message once more
    verdict = judge(ledger, 1, [SCHEDULE], exactly_once=True)
    assert not verdict.findings
    assert (verdict.sent, verdict.in_doubt, verdict.arrived, verdict.twice) == (699, 1, 197, 0)
    assert verdict.compared == 198
    assert (verdict.instants.expected, verdict.instants.late_ms) == (66, 10)
    assert verdict.cancels == {"done": 1, "in doubt": 1, "too_late": 1, "withdrawn": 1}
    assert verdict.late_ms == {"median": 5, "99 of 100": 5, "most": 99_920}


@pytest.mark.parametrize(
    ("finding", "change"),
    [
        ("lost", "DELETE FROM arrivals WHERE number = 80"),
        ("early", "UPDATE arrivals SET at_ms = 100077 WHERE number = 80"),
        ("twice_unmarked", "INSERT INTO arrivals VALUES (9999, 80, 200000, 1, 0)"),
        ("cancelled", "INSERT INTO cancels VALUES (80, 1, 2, 'done')"),
        ("cancelled", "INSERT INTO cancels VALUES (80, 1, 2, 'unknown')"),
        ("strange", "INSERT INTO arrivals VALUES (9999, 81, 200000, 1, 0)"),
        ("out_of_order", "UPDATE arrivals SET place = 9999 WHERE number = 80"),
        ("instants missing", "DELETE FROM occurrences WHERE instant_ms = 6000"),
        ("instants twice", "INSERT INTO occurrences SELECT 9999, name, 6000, 6000, 1, 0 FROM occurrences LIMIT 1"),
        ("instants early", "UPDATE occurrences SET at_ms = 5990 WHERE instant_ms = 6000"),
        ("instants strange", "INSERT INTO occurrences SELECT 9999, name, 6001, 6001, 1, 0 FROM occurrences LIMIT 1"),
        ("growth", "INSERT INTO samples SELECT 1, at_ms, 'files', at_ms FROM samples"),
    ],
)
@pytest.mark.parametrize("exactly_once", [True, False])
def test_the_judge_finds_a_broken_promise(ledger: Ledger, finding: str, change: str, exactly_once: bool) -> None:
    ledger.write(change, [()])
    assert list(judge(ledger, 1, [SCHEDULE], exactly_once=exactly_once).findings) == [finding]


def test_a_marked_copy_is_a_finding_on_redis_alone(ledger: Ledger) -> None:
    ledger.write(ARRIVE, [(9_999, 80, 200_000, 1, 1)])
    ledger.write("INSERT INTO occurrences VALUES (NULL, ?, 6000, 6000, 1, 1)", [(SCHEDULE.name,)])
    assert list(judge(ledger, 1, [SCHEDULE], exactly_once=True).findings) == ["twice_unmarked", "instants twice"]
    verdict = judge(ledger, 1, [SCHEDULE], exactly_once=False)
    assert not verdict.findings
    assert verdict.twice == verdict.instants_twice == 1


def test_the_number_of_a_task_is_in_its_id() -> None:
    assert number_of(task_id(6_500_000)) == 6_500_000
    with pytest.raises(ValueError, match="must be that of a number"):
        number_of("01a0b2c3-0000-7000-8000-00000000002a")
