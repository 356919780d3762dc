"""One engine on the models of store and broker, with a renderer of its own."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from celery_wheel.engine.engine import Engine
from celery_wheel.engine.round import Limits
from celery_wheel.store.model import Message
from celery_wheel.store.schedule_model import Run, Schedule, Skip
from celery_wheel.timing import ManualClock
from tests.simulation.recurring_world import Renderer
from tests.unit.engine.conftest import START_MS, Rig


@dataclass
class ScheduleRig(Rig):
    """``tick`` passes time in steps of 100 ms, with a round of everything in each."""

    renderer: Renderer = field(default_factory=Renderer)
    cancelled: list[str] = field(default_factory=list)  #: task ids that ``on_overlap`` got

    def new_engine(self, name: str = "one") -> Engine:
        engine = super().new_engine(name)
        engine.ctx.renderer, engine.ctx.on_overlap = self.renderer, self.cancelled.extend
        return engine

    def change(self, do: str, names: list[str] | dict[str, Any], **more: Any) -> dict[str, Any]:
        """Carry out a command on schedules; return its results."""
        named = {"definitions": names} if isinstance(names, dict) else {"names": names}
        number = self.put("schedule", do=do, **named, actor="ann", reason="test", **more)
        self.run("tend", "ingest", "ingest")
        answer = self.store.answer(number)
        assert answer is not None, "the command was not answered"
        return answer

    def create(self, name: str = "report", every_ms: int = 1_000, **more: Any) -> Schedule:
        assert self.change("create", {name: definition(every_ms, **more)}) == {name: {"result": "done"}}
        return self.schedule(name)

    def end(self, schedule: Schedule, instant_ms: int) -> Run:
        """Report the end of the run of an instant that has one."""
        [run] = [one for one in self.runs() if (one.schedule, one.instant_ms) == (schedule.id, instant_ms)]
        self.put("run_ended", run=run.timer_id)
        return run

    def tick(self, ms: int) -> None:
        for _ in range(ms // 100):
            self.run()
            self.pass_time(100)
        self.run()

    # -- reading, with instants as milliseconds after the start ----------------------------------------

    def schedule(self, name: str = "report") -> Schedule:
        return self.store.schedules_named([name])[0][1]

    def ran(self, name: str = "report") -> list[int]:
        """Return the instants of the occurrences that were published, in order."""
        return [int(task_id.split()[1]) - START_MS for task_id in self.pushed if task_id.split()[0] == name]

    def made(self) -> list[int]:
        return sorted(run.at_ms - START_MS for run in self.runs())

    def runs(self) -> list[Run]:
        return list(self.data.runs.values())

    def skips(self) -> list[tuple[int, int, int, str]]:
        return [skip_of(one) for one in self.data.skips]

    def outcomes(self) -> list[str]:
        return [one.kind for one in self.data.outcomes]

    def next_ms(self, name: str = "report") -> int | None:
        at_ms = self.schedule(name).next_ms
        return None if at_ms is None else at_ms - START_MS

    def message(self, row_id: int) -> Message:
        message = self.data.rows[row_id].message
        assert isinstance(message, Message)
        return message


def skip_of(one: Skip) -> tuple[int, int, int, str]:
    return one.from_ms - START_MS, one.to_ms - START_MS, one.count, one.reason


def definition(every_ms: int = 1_000, *, recurrence: dict[str, Any] | None = None, **policies: Any) -> dict[str, Any]:
    spec = {"kind": "interval", "every_ms": every_ms, "anchor_ms": START_MS}
    return {"recurrence": {"kind": "recurrence", "spec": spec, **(recurrence or {})}, "task": "app.report", **policies}


@pytest.fixture
def rig() -> ScheduleRig:
    return with_limits()


def with_limits(**limits: int) -> ScheduleRig:
    rig = ScheduleRig(limits=Limits(**limits), clock=ManualClock(START_MS))
    rig.run("tend")
    return rig
