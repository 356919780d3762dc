"""A scheduler without a second clock: its wall clock is stepped, commands show it, and the operator accepts it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from kombu.transport.memory import Channel, Transport

from celery_wheel import Celery
from celery_wheel.broker.transport import broker_for
from celery_wheel.conf import Conf
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.runner import Runner
from celery_wheel.scheduler.service import open_store_of
from celery_wheel.timing import SystemClock
from tests.integration.cli.conftest import invoke
from tests.kit.patience import wait_until


class SteppedClock(SystemClock):
    __slots__ = ("ahead_ms",)

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


class Holders:
    """A scheduler of two shards on the memory transport, in this process."""

    def __init__(self, folder: Path) -> None:
        self.app = Celery("clocks", broker="memory://", set_as_current=False)
        self.app.conf.update(wheel_store=f"sqlite:///{folder}/wheel.sqlite3", wheel_shards=2)
        conf = Conf(self.app)
        self.clock = SteppedClock()
        self._store = open_store_of(conf)
        self.runners = [
            Runner(
                Engine(shard, "here", self._store, broker_for(self.app, conf, self._store), self.clock),
                lease_ms=2_000,
                poll_ms=20,
            )
            for shard in range(2)
        ]
        for runner in self.runners:
            runner.start()

    def __call__(self, *arguments: str) -> Result:
        return invoke(self.app, *arguments)

    def disputed_ms(self) -> list[int | None]:
        return [one["disputed_ms"] for one in json.loads(self("clock", "--json").stdout)["clocks"]]

    def close(self) -> None:
        for runner in self.runners:
            runner.stop()
        self._store.close()
        self.app.close()


@pytest.fixture
def holders(tmp_path: Path) -> Iterator[Holders]:
    found = Holders(tmp_path)
    yield found
    found.close()
    Channel.queues.clear()
    Transport.global_state.clear()


def test_a_step_is_shown_everywhere_until_it_is_accepted(holders: Holders) -> None:
    wait_until(lambda: holders.disputed_ms() == [0, 0], "both shards have a holder")
    shown = holders("clock")
    assert shown.exit_code == 0
    assert shown.stdout.count("agrees with due time") == 2
    assert holders("clock", "accept").exit_code == 3, "there is nothing to accept"
    holders.clock.ahead_ms = 30_000
    # A process that loses its core between two readings of its clocks measures a few milliseconds more or less. The
    # table has tenths of a second.
    wait_until(lambda: holders.disputed_ms() == [pytest.approx(30_000, abs=49)] * 2, "the step is seen", 20)
    shown = holders("clock")
    assert shown.exit_code == 3
    assert "30 s ahead of due time" in shown.stdout
    for command in ("clock", "status", "doctor"):
        said = " ".join(holders(command).stdout.replace("│", " ").split())
        assert "wheel clock accept" in said, said
    accepted = holders("clock", "accept", "--reason", "the host had started with a wrong clock")
    assert (accepted.exit_code, accepted.stdout) == (0, "due time follows the wall clock now\n")
    wait_until(lambda: holders.disputed_ms() == [0, 0], "due time follows")
    assert json.loads(holders("clock", "accept", "--json").stdout) == {"answer": "agreed"}
