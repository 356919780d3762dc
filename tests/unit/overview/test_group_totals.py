"""The figures of groups of all shards, and the problems of groups, as a holder's snapshot tells them."""

from __future__ import annotations

from typing import Any

from celery_wheel.operations.doctor import Grade, shards
from celery_wheel.overview import GroupTotals, ShardStatus, group_totals
from celery_wheel.store.ports.pages import LARGEST, LargeGroup

STARVING = {"name": "tenant:1", "queue": "mail", "waiting": 1_234, "for_ms": 720_000, "slots": 5}


def status(shard: int = 0, *, live: bool = True, **snapshot: Any) -> ShardStatus:
    return ShardStatus(shard, "one", 1, 0, live, 0, 0, None, None, 0, 0, 0, 0, [], [], snapshot)


def figures(*largest: Any, count: int = 0, waiting: int = 0, **more: Any) -> dict[str, Any]:
    return {
        **{"count": count, "waiting": waiting, "largest": list(largest)},
        **{"starving": [], "starving_count": 0, "unreported": [], "unreported_count": 0},
        **more,
    }


def test_groups_of_several_shards_are_added_up() -> None:
    found = group_totals(
        [
            status(0, groups=figures(["tenant:1", 5, 2, [0, 7]], ["", 3, 0, [1]], count=900, waiting=1_000)),
            status(1, groups=figures(["", 4, 1, [0]], ["b", 5, 0, [3]], count=2, waiting=9), live=False),
            status(2, groups=None),
            status(3),
        ]
    )
    largest = [
        LargeGroup("", 7, 1, [(0, 1), (1, 0)]),
        LargeGroup("b", 5, 0, [(1, 3)]),
        LargeGroup("tenant:1", 5, 2, [(0, 0), (0, 7)]),
    ]
    assert found == GroupTotals(902, 1_009, largest)


def test_the_largest_of_all_shards_are_as_many_as_those_of_one() -> None:
    each = [[[f"{shard}:{n}", 1, 0, [n]] for n in range(LARGEST)] for shard in range(2)]
    found = group_totals([status(shard, groups=figures(*largest)) for shard, largest in enumerate(each)])
    assert [one.name for one in found.largest] == sorted(one[0] for one in each[0] + each[1])[:LARGEST]


def test_status_and_doctor_name_groups_that_starve_or_have_no_reports() -> None:
    groups = figures(starving=[STARVING], starving_count=3, unreported=[["tenant:2", 7]], unreported_count=1)
    one = status(groups=groups, version=None, slots_timed_out=7, slots_reported=1)
    assert (one.starving, one.unreported) == ([STARVING], {"tenant:2": 7})
    assert (one.as_dict()["starving"], one.as_dict()["unreported"]) == ([STARVING], {"tenant:2": 7})
    assert one.group_problems == [
        "the group tenant:1 starves: 1,234 tasks wait for queue mail, and none was dispatched for 12 min, while tasks "
        "of other groups were: its 5 slots are taken; find the runs that hang: celery inspect active",
        "2 more groups starve; find the runs that hang: celery inspect active",
        "the last 7 slots of the group tenant:2 ended by max_runtime, and no worker has reported an end since; make "
        "the app of each worker with celery_wheel.Celery, or call celery_wheel.install(app)",
    ]
    found = [finding for finding in shards.reported(one) if "group" in finding.text]
    assert [finding.grade for finding in found] == [Grade.WARNING] * 3
    assert found[0].remedy == "Find the runs that hang: celery inspect active"
    assert not [finding for finding in shards.reported(one) if "all 7 slots" in finding.text]


def test_doctor_warns_where_no_end_was_ever_reported() -> None:
    [found] = [one for one in shards.reported(status(slots_timed_out=7, slots_reported=0)) if "slots" in one.text]
    assert "all 7 slots of groups that ended since its holder began ended by max_runtime" in found.text


def test_a_holder_that_is_gone_names_nobody() -> None:
    one = status(groups=figures(starving=[STARVING], starving_count=9, unreported=[["a", 7]]), live=False)
    assert (one.starving, one.unreported, one.group_problems) == ([], {}, [])
