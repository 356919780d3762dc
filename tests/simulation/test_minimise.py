"""A violation is shown by a few events, and the table of faults and steps names the corners that were left out."""

import pytest

from tests.simulation.meetings import Meetings
from tests.simulation.minimise import Minimiser, promise_of
from tests.simulation.planted import PLANTED
from tests.simulation.world import World


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["queue_peeked_before_the_inbox_is_read", "key_without_a_look"])
def test_a_history_is_shortened_to_the_events_that_break_the_same_promise(bug: str) -> None:
    plant, seed = next((plant, seed) for plant, seed in PLANTED if plant.__name__ == bug)
    with plant() as broken:
        least = Minimiser(broken, seed)
        whole, events = str(least.violation), least.events
        least.minimise()
        violation = least.run({*least.kept})[1]
        shorter = [least.run({*least.kept} - {one})[1] for one in least.kept]
    assert violation is not None
    assert len(least.kept) < 30 < events
    assert str(violation) == str(least.violation)
    assert str(violation).count("\n") < whole.count("\n")
    # Every event that is left is necessary.
    assert all(one is None or promise_of(one) != promise_of(violation) for one in shorter)


def test_a_seed_that_breaks_no_promise_has_nothing_to_shorten() -> None:
    with pytest.raises(LookupError, match="seed 3 breaks no promise of World"):
        Minimiser(World, 3)


def test_the_table_names_what_could_meet_and_did_not() -> None:
    meetings = Meetings()
    meetings.acts("settle", None)
    meetings.reaches("store, read")
    meetings.fails("store, read")
    meetings.acts("settle", "applied")
    meetings.reaches("store, before commit")
    for fault in ("crash", "freeze", "give"):
        meetings.come(fault, {"settle": "applied"})
    assert meetings.empty() == [("settle: applied", "clock"), ("settle: applied", "store, before commit")]
    head, second, first = meetings.table()
    assert head.split() == ["step", "crash", "freeze", "give", "clock", "store,", "before", "commit", "store,", "read"]
    assert (first.split()[-6:], second.split()[-6:]) == (["-", "-", "-", "-", "-", "1"], ["1", "1", "1", "0", "0", "-"])
