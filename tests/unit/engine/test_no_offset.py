"""The engine with a broker that keeps no offset: second copies are marked, and a former holder sends nothing."""

from __future__ import annotations

import pytest

from celery_wheel.engine.engine import Engine
from celery_wheel.errors import PublishInterrupted
from tests.simulation.model_rabbit import ModelRabbit, RabbitServer
from tests.simulation.model_store import ModelStore
from tests.unit.engine.conftest import Rig


class RabbitRig(Rig):
    def new_engine(self, name: str = "one") -> Engine:
        self.rabbit = RabbitServer()
        self.sent_as: list[tuple[str, bool]] = []
        self.model = ModelRabbit(
            self.rabbit,
            self.clock.now_ms,
            pushed=lambda row, now_ms, redelivered: self.sent_as.append((self.task_id(row.id), redelivered)),
        )
        self.store = ModelStore(self.disk)
        return Engine(0, name, self.store, self.model, self.clock, self.limits)

    def send_in(self, task_id: str, **changes: object) -> None:
        self.rabbit.wheel.append(self.send(task_id, 0, **changes))

    def try_again(self) -> None:
        self.run("tend", "dispatch", rounds=3, after_ms=5_000)


@pytest.fixture
def rig() -> RabbitRig:
    return RabbitRig()


@pytest.mark.parametrize(("exchange", "marked"), [("", False), ("news", True)])
def test_a_message_refused_by_one_queue_of_an_exchange_is_marked_as_redelivered(
    rig: RabbitRig, exchange: str, marked: bool
) -> None:
    rig.send_in("a", exchange=exchange, exchange_type="direct")
    rig.run("tend", "ingest", "prefetch")
    target = next(iter(rig.data.rows.values())).row.route.target
    rig.rabbit.full.add(target)
    rig.run("dispatch", rounds=3)
    rig.try_again()
    assert rig.sent_as == []
    rig.rabbit.full.clear()
    rig.try_again()
    assert rig.sent_as == [("a", marked)]


def test_a_former_holder_does_not_publish_a_chunk_in_doubt_again(
    rig: RabbitRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine and its monotonic clock stood still, so that the lease seems valid."""
    rig.send_in("a")
    rig.run("tend", "ingest", "prefetch")
    monkeypatch.setattr(rig.model, "publish", _interrupted)
    rig.run("dispatch")
    monkeypatch.undo()
    now_ms = rig.clock.now_ms() + 60_000
    assert ModelStore(rig.disk).acquire(0, "two", now_ms, 2_000) is not None
    rig.run("dispatch", rounds=3)
    assert rig.sent_as == []
    assert rig.engine.state is None


def test_a_peek_from_before_the_command_does_not_count(rig: RabbitRig) -> None:
    """The round was delayed after its peek; a message that was sent before the command may have arrived since."""
    rig.run("tend")
    number = rig.put("cancel", task_ids=["a"])
    rig.run("ingest")
    steps = rig.stopped_at("ingest", "found")
    rig.run("tend", after_ms=1_000)
    rig.send_in("a")
    list(steps)
    assert rig.store.answer(number) is None
    rig.run("ingest")
    rig.run("tend", "ingest", after_ms=1_000)
    assert rig.store.answer(number) == {"a": "done"}


def _interrupted(*args: object, **options: object) -> None:
    raise PublishInterrupted("the connection ended", set())
