"""Schedules with groups on several shards: each is in the shard of its group, and commands find it by its name."""

import json
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from celery_wheel.broker import shard_of
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.round import Limits, run_round
from celery_wheel.engine.state.groups import Limit
from celery_wheel.errors import StoreError
from celery_wheel.store.model import Message
from celery_wheel.store.schedule_model import RUN_ENDED, SCHEDULE, RunReport, Schedule
from celery_wheel.timing import ManualClock
from tests.kit.holder import message
from tests.simulation.model_redis import ModelRedis, RedisServer
from tests.simulation.model_store import Disk, ModelStore
from tests.simulation.recurring_world import Renderer
from tests.unit.engine.conftest import START_MS
from tests.unit.engine.recurring.conftest import definition

SHARDS = 3
ACTIVITIES = ("tend", "ingest", "prefetch", "dispatch", "settle", "release_rows")
LIMITS = Limits(groups={"tenant": Limit(concurrency=1)})


def home(name: str) -> int:
    return shard_of(name, "", SHARDS)


def named(shard: int, prefix: str) -> str:
    return next(name for n in range(100) if home(name := f"{prefix}{n}") == shard)


#: Schedules have names of shard 0; groups are in the shards 1 and 2.
NAME, OTHER = named(0, "report"), named(0, "other")
ONE, TWO = named(1, "tenant:"), named(2, "tenant:")
FREE = [named(shard, "other:") for shard in range(SHARDS)]  #: groups without a limit


@dataclass
class Shards:
    """An engine for each shard, on one store. ``tick`` passes time in steps of 100 ms, with a round of everything."""

    clock: ManualClock = field(default_factory=lambda: ManualClock(START_MS))
    renderer: Renderer = field(default_factory=Renderer)
    disk: Disk = field(default_factory=Disk)
    pushed: list[tuple[int, str]] = field(default_factory=list)  #: shard and task id
    rows: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.servers = [RedisServer() for _ in range(SHARDS)]
        self.store = ModelStore(self.disk)
        self.engines = [self.engine(shard) for shard in range(SHARDS)]
        self.run()

    def engine(self, shard: int, renderer: Renderer | None = None) -> Engine:
        def pushed(row: Any, _now_ms: int) -> None:
            sent = self.disk.shard(shard).rows[row.id].message
            assert isinstance(sent, Message)
            self.pushed.append((shard, sent.task_id))
            self.rows.append(row.id)

        broker = ModelRedis(self.servers[shard], self.clock.now_ms, pushed=pushed)
        options: dict[str, Any] = {"renderer": renderer or self.renderer, "shard_of": home}
        return Engine(shard, "one", self.store, broker, self.clock, LIMITS, **options)

    def run(self, shards: range = range(SHARDS)) -> None:
        for shard in shards:
            for activity in ACTIVITIES:
                run_round(getattr(self.engines[shard], activity)())

    def tick(self, ms: int) -> None:
        for _ in range(ms // 100):
            self.run()
            self.clock.advance(100)
        self.run()

    def put(self, do: str, names: Any, **more: Any) -> str:
        """Put a command into the inbox of the shard of its names; return its number."""
        number = str(uuid.uuid4())
        content = {"definitions": names} if isinstance(names, dict) else {"names": names}
        fields = {"do": do, "id": number, "actor": "ann", "reason": "test", **content, **more}
        [shard] = {home(name) for name in names}
        self.item = self.store.put_command(shard, SCHEDULE, json.dumps(fields).encode())
        return number

    def change(self, do: str, names: Any, **more: Any) -> Any:
        number = self.put(do, names, **more)
        for _ in range(SHARDS + 1):
            self.run()
        answer = self.store.answer(number)
        assert answer is not None, "the command was not answered"
        return answer

    def create(self, group: str | None = ONE, name: str = NAME, **more: Any) -> None:
        assert self.change("create", {name: grouped(group, **more)}) == {name: {"result": "done"}}

    def found(self, name: str = NAME) -> tuple[int, Schedule]:
        [found] = self.store.schedules_named([name])
        return found

    def shard(self, name: str = NAME) -> int:
        return self.found(name)[0]

    def ran(self, name: str = NAME) -> list[int]:
        """Return the instants of the occurrences that were published, in order, after the start."""
        return [int(id_.split()[1]) - START_MS for _, id_ in self.pushed if id_.split()[0] == name]

    def end(self, row_id: int, *, slot: bool = False) -> None:
        self.store.put_inbox(row_id & 0xFF, [(RUN_ENDED, RunReport(row_id, slot).payload)])

    def skips(self) -> list[tuple[int, str]]:
        found = [one for data in self.disk.shards.values() for one in data.skips]
        return sorted((one.from_ms - START_MS, one.reason) for one in found)

    def outcomes(self) -> list[str]:
        return [one.kind for data in self.disk.shards.values() for one in data.outcomes]

    def revisions(self) -> list[str]:
        found = [one for data in self.disk.shards.values() for one in data.revisions]
        return [one.what for one in sorted(found, key=lambda one: one.number)]


def grouped(group: str | None, every_ms: int = 1_000, **policies: Any) -> dict[str, Any]:
    options = {} if group is None else {"options": {"wheel": {"group": group}}}
    return definition(every_ms, **options, **policies)


@pytest.fixture
def shards() -> Shards:
    return Shards()


def test_a_schedule_goes_to_the_shard_of_its_group_before_its_first_instant(shards: Shards) -> None:
    shards.create(TWO, every_ms=5_000)
    shards.create(None, OTHER)
    shards.tick(4_500)
    assert (shards.shard(), shards.shard(OTHER)) == (2, 0)
    assert not shards.ran()


def test_each_instant_is_made_once_in_the_shard_of_the_group(shards: Shards) -> None:
    shards.create(every_ms=3_000)
    shards.tick(9_500)
    assert shards.ran() == [3_000]  # the slot of the group is taken
    assert {shard for shard, _ in shards.pushed} == {1}
    for _ in range(2):
        shards.end(shards.rows[-1], slot=True)
        shards.tick(1_000)
    assert shards.ran() == [3_000, 6_000, 9_000]


def test_occurrences_and_calls_share_the_limit_of_the_group(shards: Shards) -> None:
    now_ms = shards.clock.now_ms()
    call = message(task_id="call", group=ONE, key=ONE, eta_ms=now_ms + 1_500, created_ms=now_ms)
    shards.servers[home(ONE)].keys.wheel.append(call)
    shards.create(every_ms=2_000)
    shards.tick(5_000)
    assert shards.pushed == [(1, "call")]
    shards.end(shards.rows[0], slot=True)
    shards.tick(1_000)
    assert [id_.split()[0] for _, id_ in shards.pushed] == ["call", NAME]


@pytest.mark.parametrize("group", [FREE[2], None])
def test_an_edit_of_the_group_moves_the_schedule_without_a_gap(shards: Shards, group: str | None) -> None:
    shards.create(FREE[1])
    shards.tick(3_000)
    assert shards.shard() == 1
    assert shards.change("update", {NAME: grouped(group)})[NAME]["result"] == "done"
    shards.tick(5_000)
    assert shards.shard() == (2 if group else 0)
    assert shards.ran() == [*range(1_000, 8_001, 1_000)]
    assert shards.revisions() == ["created", "changed"]
    assert shards.skips() == []


def test_a_schedule_comes_back_after_an_edit(shards: Shards) -> None:
    first, second = FREE[1], FREE[2]
    shards.create(first)
    for group in (second, first, second):
        shards.tick(2_500)
        shards.change("update", {NAME: grouped(group)})
    shards.tick(2_500)
    assert shards.shard() == 2
    assert shards.ran() == [*range(1_000, 10_001, 1_000)]


@pytest.mark.parametrize("do", ["pause", "resume", "delete", "trigger", "update", "put", "patch", "create", "restore"])
def test_a_command_finds_the_schedule_by_its_name(shards: Shards, do: str) -> None:
    shards.create(FREE[1])
    shards.tick(2_500)
    _, schedule = shards.found()
    new = {"update": grouped(None, 5_000), "put": grouped(None, 5_000), "patch": {"jitter_ms": 5}}
    names = {NAME: new.get(do, grouped(None))} if do in (*new, "create", "restore") else [NAME]
    if do == "restore":
        names = {NAME: {"schedule": {"definition": schedule.definition}}}
    found = shards.change(do, names)[NAME]["result"]
    assert found == ("already" if do in ("create", "restore", "resume") else "done")
    stored = [one for _, one in shards.store.schedules_named([NAME])]
    assert len(stored) == (do != "delete")
    if do == "pause":
        assert (stored[0].paused, stored[0].id) == (True, schedule.id)
    if do == "trigger":
        shards.tick(100)
        assert shards.pushed[-1][0] == 1
        assert shards.clock.now_ms() - START_MS - shards.ran()[-1] <= 100


def test_names_that_share_a_definition_may_be_in_three_shards(shards: Shards) -> None:
    names = [f"job{n}" for n in range(30) if home(f"job{n}") == 0][:3]
    for name, group in zip(names, (None, FREE[1], FREE[2]), strict=True):
        shards.create(group, name)
    shards.tick(1_500)
    assert shards.change("patch", names, definition={"jitter_ms": 5}) == {name: {"result": "done"} for name in names}
    assert all(json.loads(shards.found(name)[1].definition)["jitter_ms"] == 5 for name in names)


def test_a_name_is_free_again_after_a_delete(shards: Shards) -> None:
    shards.create(FREE[1])
    shards.tick(2_000)
    shards.change("delete", [NAME])
    shards.create(FREE[2])
    shards.tick(2_000)
    assert shards.shard() == 2
    assert shards.revisions() == ["created", "created", "deleted"]


def test_two_creations_at_the_same_time_leave_one_schedule(shards: Shards) -> None:
    numbers = [shards.put("create", {NAME: grouped(group)}) for group in (ONE, TWO)]
    shards.tick(2_000)
    answers = [shards.store.answer(number) for number in numbers]
    assert answers == [{NAME: {"result": "done"}}, {NAME: {"result": "already"}}]
    assert shards.shard() == 1


def test_a_command_with_names_in_three_shards_has_one_answer(shards: Shards) -> None:
    names = [f"job{n}" for n in range(30) if home(f"job{n}") == 0][:3]
    groups = (None, FREE[1], FREE[2])
    for name, group in zip(names, groups, strict=True):
        shards.create(group, name)
    shards.tick(1_500)
    assert [shards.shard(name) for name in names] == [0, 1, 2]
    assert shards.change("pause", [*names, NAME]) == {
        **{name: {"result": "done"} for name in names},
        NAME: {"result": "unknown"},
    }
    assert all(shards.found(name)[1].paused for name in names)
    audit = {"origin": "cli", "action": "resume", "request": str(uuid.uuid4()), "at_ms": shards.clock.now_ms()}
    assert len(shards.change("resume", names, audit=audit)) == 3
    again = {name: {"result": "already"} for name in names}
    assert shards.change("create", {name: grouped(None) for name in names}) == again


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before commit", "after commit"])
@pytest.mark.parametrize("failing", range(1, 9))
def test_a_commit_without_an_answer_repeats_and_loses_nothing(shards: Shards, point: str, failing: int) -> None:
    shards.create(FREE[1])
    shards.tick(1_500)
    shards.change("update", {NAME: grouped(FREE[2])})
    number = shards.put("trigger", [NAME])
    commits = []

    def fault(at: str) -> None:
        commits.extend([at] if at == point else [])
        if at == point and len(commits) == failing:
            raise StoreError("simulated")

    shards.store.fault = fault
    shards.tick(15_000)
    answer = shards.store.answer(number)
    assert answer is not None
    [task_id] = answer[NAME]["task_ids"]
    assert [id_ for _, id_ in shards.pushed].count(task_id) == 1
    own = [int(id_.split()[1]) - START_MS for _, id_ in shards.pushed if id_ != task_id]
    assert own == [*range(1_000, own[-1] + 1, 1_000)]
    assert own[-1] >= 15_000
    assert shards.shard() == 2


def test_a_withdrawn_command_is_not_passed_on(shards: Shards) -> None:
    shards.create(FREE[1])
    shards.tick(1_500)
    shards.put("pause", [NAME])
    payload = shards.disk.shard(0).inbox[shards.item].payload
    steps = shards.engines[0].ingest()
    while next(steps) != "changes prepared":
        pass
    assert shards.store.withdraw(shards.item, (0, SCHEDULE, payload))
    run_round(steps)
    shards.run()
    assert not shards.found()[1].paused


def test_a_command_can_be_withdrawn_after_it_was_passed_on(shards: Shards) -> None:
    shards.create(FREE[1])
    shards.tick(1_500)
    shards.put("pause", [NAME])
    payload = shards.disk.shard(0).inbox[shards.item].payload
    shards.run(range(1))
    assert shards.disk.shard(1).inbox[shards.item].payload == payload
    assert shards.store.withdraw(shards.item, (0, SCHEDULE, payload))
    shards.run()
    assert not shards.found()[1].paused


def test_a_paused_schedule_runs_in_the_shard_of_its_group_when_it_is_triggered(shards: Shards) -> None:
    shards.create(ONE, every_ms=10_000)
    shards.change("pause", [NAME])
    assert shards.shard() == 0
    numbers = [shards.put("trigger", [NAME]) for _ in range(2)]
    shards.tick(500)
    assert shards.shard() == 1
    assert [shard for shard, _ in shards.pushed] == [1]  # the second waits for the slot of the group
    assert all(shards.store.answer(number) for number in numbers)


def test_pending_occurrences_stay_in_the_former_shard_until_a_pause_cancels_them(shards: Shards) -> None:
    shards.create(ONE)
    shards.tick(3_500)
    assert shards.ran() == [1_000]  # 2,000 and 3,000 wait for the slot
    shards.change("update", {NAME: grouped(FREE[2])})
    shards.tick(2_000)
    assert shards.shard() == 2
    answer = shards.change("pause", [NAME])[NAME]
    assert {2_000, 3_000} <= {at_ms - START_MS for at_ms in answer["too_late"]}
    shards.end(shards.rows[0], slot=True)
    shards.tick(1_000)
    assert not {2_000, 3_000} & set(shards.ran())
    assert shards.outcomes().count("cancelled") >= 2


def test_occurrences_that_the_former_shard_has_made_ahead_are_not_made_twice(shards: Shards) -> None:
    """Only a route or ``wheel_group`` changes a group without an edit, which would withdraw them."""
    groups = [FREE[1]]
    render = shards.renderer.render

    def rendered(*args: Any) -> Message:
        found = render(*args)
        found.group = groups[0]
        return found

    shards.renderer.render = rendered  # type: ignore[method-assign]
    shards.create(None)
    shards.tick(2_500)
    groups[0] = FREE[2]
    shards.tick(500)
    shards.tick(1_000)
    assert shards.shard() == 2
    answer = shards.change("patch", {NAME: {"jitter_by": "run"}})[NAME]
    shards.tick(4_000)
    assert answer["result"] == "done"
    assert shards.ran() == [*range(1_000, 8_001, 1_000)]


def test_the_overlap_policy_counts_runs_of_the_former_shard(shards: Shards) -> None:
    first, second = FREE[1], FREE[2]
    shards.create(first, overlap="skip")
    shards.tick(3_000)
    [running] = shards.rows
    assert len(shards.ran()) == 1
    shards.change("update", {NAME: grouped(second, overlap="skip")})
    shards.tick(2_000)
    assert len(shards.ran()) == 1
    shards.change("trigger", [NAME])
    assert shards.shard() == 2  # a trigger runs whatever goes on, and has moved the schedule
    [*_, triggered] = shards.rows
    shards.end(triggered)
    shards.tick(2_000)
    assert len(shards.ran()) == 2
    shards.end(running)
    shards.tick(2_000)
    assert len(shards.ran()) == 3


def test_a_moved_schedule_waits_for_the_run_before_it(shards: Shards) -> None:
    first, second = FREE[1], FREE[2]
    shards.create(first, overlap="queue_one")
    shards.tick(2_500)
    [running] = shards.rows
    shards.change("update", {NAME: grouped(second, overlap="queue_one")})
    shards.tick(2_000)
    assert len(shards.rows) == 1
    shards.end(running)
    shards.tick(3_000)
    assert len(shards.rows) == 2
    assert [shard for shard, _ in shards.pushed] == [1, 2]


@pytest.mark.slow
def test_a_herd_moves_to_the_shard_of_its_group_before_it_is_due(shards: Shards) -> None:
    """A thousand names of one shard would take a while: a herd is three schedules here."""
    limits = Limits(herd_count=2, herd_per_s=1, groups={})
    for engine in shards.engines:
        engine.ctx.limits = limits
    names = [name for n in range(60) if home(name := f"herd{n}") == 0][:6]
    group = FREE[1]
    shards.change("create", {name: grouped(group, 60_000) for name in names})
    shards.tick(60_000)
    assert {shards.shard(name) for name in names} == {1}
    assert sorted(id_.split()[0] for _, id_ in shards.pushed) == sorted(names)
    assert {shard for shard, _ in shards.pushed} == {1}


class Renamer(Renderer):
    """A scheduler whose code names other groups."""

    def __init__(self, group: Callable[[], str | None]) -> None:
        super().__init__()
        self.group = group

    def render(self, *args: Any) -> Message:
        found = super().render(*args)
        found.group = self.group()
        return found


def test_schedulers_that_disagree_about_a_group_run_the_schedule_all_the_same(shards: Shards) -> None:
    groups = (FREE[1], FREE[0], None)
    for shard, group in enumerate(groups):
        shards.engines[shard].ctx.renderer = Renamer(lambda group=group: group)  # type: ignore[misc]
    shards.create(None, every_ms=5_000)
    shards.tick(11_000)
    assert shards.ran() == [5_000, 10_000]
    shards.change("trigger", [NAME])
    shards.tick(100)
    assert len(shards.ran()) == 3


def test_a_refused_command_is_answered_by_the_shard_of_the_group(
    shards: Shards, caplog: pytest.LogCaptureFixture
) -> None:
    shards.create(FREE[1])
    shards.tick(1_500)
    with caplog.at_level(logging.ERROR):
        answer = shards.change("patch", {NAME: {"jitter_ms": -1}})
    assert answer[NAME]["result"] == "refused"
    assert "jitter_ms" in answer[NAME]["reason"]
