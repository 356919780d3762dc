"""The engine with a broker that keeps no offset: what may be there twice says so, and a former holder sends nothing."""

from __future__ import annotations

import pytest

from celery_wheel.engine.engine import Engine
from celery_wheel.errors import Interrupted
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
        return Engine(0, name, ModelStore(self.disk), self.model, self.clock, self.limits)

    def send_in(self, task_id: str, **changes: object) -> None:
        self.rabbit.wheel.append(self.send(task_id, 0, **changes))

    def try_again(self) -> None:
        self.pass_time(5_000)
        self.run("tend", "dispatch", rounds=3)


@pytest.fixture
def rig() -> RabbitRig:
    return RabbitRig()


@pytest.mark.parametrize(("exchange", "marked"), [("", False), ("news", True)])
def test_what_one_queue_of_an_exchange_refused_is_marked_since_another_may_have_it(
    rig: RabbitRig, exchange: str, marked: bool
) -> None:
    rig.send_in("a", exchange=exchange, exchange_type="direct")
    rig.run("tend", "ingest", "load")
    target = next(iter(rig.disk.shard(0).rows.values())).row.target
    rig.rabbit.full.add(target)
    rig.run("dispatch", rounds=3)
    rig.try_again()
    assert rig.sent_as == []
    rig.rabbit.full.clear()
    rig.try_again()
    assert rig.sent_as == [("a", marked)]


def test_a_chunk_in_doubt_is_not_sent_again_by_a_former_holder(rig: RabbitRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine stood still, and its monotonic clock with it: the lease looks as good as ever."""
    rig.send_in("a")
    rig.run("tend", "ingest", "load")
    monkeypatch.setattr(rig.model, "publish", _interrupted)
    rig.run("dispatch")
    monkeypatch.undo()
    now_ms = rig.clock.now_ms() + 60_000
    assert ModelStore(rig.disk).acquire(0, "two", now_ms, 2_000) is not None
    rig.run("dispatch", rounds=3)
    assert rig.sent_as == []
    assert rig.engine.term is None


def _interrupted(*args: object, **options: object) -> None:
    raise Interrupted("the connection ended", set())
