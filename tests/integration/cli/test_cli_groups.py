"""``groups`` lists the groups with waiting tasks, for people and for programs, also while no scheduler runs."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from celery_wheel import Celery
from celery_wheel.control import now_ms
from celery_wheel.overview import FEW
from celery_wheel.store import open_store
from celery_wheel.store.model import GroupLimit
from tests.contract.stores.test_groups_browsing import wait
from tests.integration.cli.conftest import Commands, invoke
from tests.kit.holder import NOW, Holder

LIMIT = GroupLimit("tenant:1", 5, 100, 60_000, 3, 7_200_000, "ops", NOW)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Celery]:
    app = Celery("groups", broker="memory://", set_as_current=False)
    app.conf.wheel_store = f"sqlite:///{tmp_path}/wheel.sqlite3"
    with closing(open_store(app.conf.wheel_store)) as store:
        holder = Holder(store)
        for number, (group, count) in enumerate({"tenant:1": 2, "tenant:2": 3, "": 1}.items()):
            wait(holder, number, group, holder.accept(*[NOW] * count, group=group or None))
        holder.apply(limits=[LIMIT])
    yield app
    app.wheel.close()


def test_groups_are_listed_with_their_own_limits(app: Celery) -> None:
    shown = invoke(app, "groups").stdout.splitlines()
    assert [line.split()[:3] for line in shown[1:]] == [["tenant:2", "3", "0"], ["tenant:1", "2", "0"], ["-", "1", "0"]]
    assert "concurrency 5, weight 3, rate 100/m, max_runtime 2 h" in shown[2]
    assert invoke(app, "groups", "--search", "stripe").stdout == "no groups\n"


def test_pages_of_groups_name_the_next(app: Celery) -> None:
    command = Commands(app, None)  # type: ignore[arg-type]
    for arguments, names in (((), ["tenant:2", "tenant:1", ""]), (("--sort", "name"), ["", "tenant:1", "tenant:2"])):
        pages = command.pages("groups", "--limit", "2", *arguments)
        assert [one["name"] for page in pages for one in page["items"]] == names
    assert [one.name for one in app.wheel.groups("TENANT", limit=1)] == ["tenant:2"]
    [of_tenant] = command.json("groups", "--search", "tenant:1")["items"]
    assert (of_tenant["waiting"], of_tenant["oldest_ms"], of_tenant["limit"]["rate_count"]) == (2, NOW, 100)


def test_status_names_the_groups_with_the_most_waiting_tasks(app: Celery) -> None:
    shown = " ".join(invoke(app, "status").stdout.replace("│", " ").split())
    assert "tenant:2 3 waiting, the oldest for" in shown
    assert "2 waiting" in shown
    assert "0 in flight" in shown
    assert "beside the main lane" not in shown
    found = Commands(app, None).json("status", code=3)  # type: ignore[arg-type]
    assert [one["name"] for one in found["groups"]] == ["tenant:2", "tenant:1", ""]


def holds(app: Celery, **groups: Any) -> None:
    """Let a live holder have these figures of groups."""
    with closing(open_store(app.conf.wheel_store)) as store:
        epoch = store.acquire(0, "one", 0, 3_000)
        assert epoch is not None
        figures = {"waiting": 6, "starving": [], "starving_count": 0, "unreported": [], **groups}
        counts = dict.fromkeys(("window_count", "window_bytes", "dispatched", "rejected"), 0)
        store.renew(0, epoch, now_ms(), 3_000, {**counts, "levels": [], "groups": figures})
    app.wheel.close()


def test_very_many_groups_are_listed_as_their_holder_counts_them(app: Celery) -> None:
    largest = [["tenant:1", 2, 7, [0]], ["tenant:9", 2, 0, [9]]]
    holds(app, count=FEW, largest=largest)
    assert [one.name for one in app.wheel.groups()] == ["tenant:2", "tenant:1", ""]
    holds(app, count=FEW + 1, largest=largest)
    page = app.wheel.groups()
    assert [(one.name, one.in_flight, one.oldest_ms, one.limit) for one in page] == [
        ("tenant:1", 7, NOW, LIMIT),
        ("tenant:9", 0, None, None),
    ]
    assert (page.next, page.others) == (None, FEW - 1)
    assert invoke(app, "groups", "--limit", "1").stdout.endswith(
        f"{FEW:,} more groups: --all lists them, --sort name shows them by pages, --search finds one\n"
    )
    assert len(invoke(app, "groups", "--all").stdout.splitlines()) == 1 + 3
    assert [one.name for one in app.wheel.groups(sort="name")] == ["", "tenant:1", "tenant:2"]
    assert [one.name for one in app.wheel.groups("tenant")] == ["tenant:2", "tenant:1"]


def test_status_names_a_group_that_starves(app: Celery) -> None:
    starving = {"name": "tenant:1", "queue": "mail", "waiting": 2, "for_ms": 600_000, "slots": 5}
    holds(app, count=3, largest=[], starving=[starving], starving_count=1, unreported=[["tenant:2", 7]])
    shown = " ".join(invoke(app, "status").stdout.replace("│", " ").split())
    assert "group the group tenant:1 starves: 2 tasks wait for queue mail" in shown
    assert "the last 7 slots of the group tenant:2 ended by max_runtime" in shown
    [shard] = Commands(app, None).json("status")["shards"]  # type: ignore[arg-type]
    assert (shard["starving"], shard["unreported"]) == ([starving], {"tenant:2": 7})


def test_show_says_for_which_group_a_task_waits(app: Celery) -> None:
    words = {one.task_id: invoke(app, "show", one.task_id).stdout for one in app.wheel.pending()}
    assert sum("pending, waits for group tenant:1, queue celery" in text for text in words.values()) == 2
    assert sum("pending, waits for queue celery" in text for text in words.values()) == 1


def test_a_forecast_by_group_shows_when_the_tasks_of_each_are_due(app: Celery) -> None:
    due = app.wheel.forecast("group")
    assert [(one.name, one.pending) for one in due] == [("", 1), ("tenant:1", 2), ("tenant:2", 3)]
    shown = [line.split()[2:4] for line in invoke(app, "forecast", "--by", "group").stdout.splitlines()]
    assert shown[1:4] == [["-", "1"], ["tenant:1", "2"], ["tenant:2", "3"]]
    found = Commands(app, None).json("forecast", "--by", "group", "--to", str(NOW + 1))  # type: ignore[arg-type]
    assert [(one["group"], one["pending"]) for one in found["spans"]] == [("", 1), ("tenant:1", 2), ("tenant:2", 3)]
    with pytest.raises(ValueError, match="by must be one of queue, task, group, got 'tenant'"):
        app.wheel.forecast("tenant")


def test_a_wrong_order_is_refused(app: Celery) -> None:
    assert invoke(app, "groups", "--sort", "age").exit_code == 2
    with pytest.raises(ValueError, match="sort must be one of waiting, name, got 'age'"):
        app.wheel.groups(sort="age")  # type: ignore[arg-type]


def test_tasks_of_a_group_are_listed_and_a_pause_is_of_one_name(app: Celery) -> None:
    command = Commands(app, None)  # type: ignore[arg-type]
    assert [one["group"] for one in command.json("list", "--group", "tenant:1")["items"]] == ["tenant:1"] * 2
    assert command.json("list", "--group", "tenant")["items"] == []
    assert command("pause", "--group", "tenant:1", "--queue", "mail").exit_code == 2
    assert command("resume").exit_code == 2
