"""A store knows its broker: its tasks are never published to the broker of another app."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from celery_wheel.cli import wheel
from celery_wheel.errors import StoreConflict
from celery_wheel.operations.doctor import Grade, Installation, broker
from celery_wheel.operations.drain import drain
from celery_wheel.store import open_store
from tests.kit.patience import wait_until
from tests.kit.stack import Stack


@pytest.fixture
def used(stack: Stack) -> Stack:
    """A stack whose store has had a scheduler; its app has another broker now."""
    with stack.service():
        pass
    stack.change(broker_url=f"{stack.broker.rpartition('/')[0]}/5")
    return stack


def start(stack: Stack) -> None:
    with stack.service():
        pass


def places(stack: Stack) -> set[str]:
    with closing(open_store(stack.store, shards=None, create=False)) as store:
        return {place.rpartition("/")[2] for place in store.brokers()}


def claim(app: Any, *arguments: str, answer: str = "") -> Any:
    command = wheel.commands["claim-broker"]
    return CliRunner().invoke(command, arguments, obj=SimpleNamespace(app=app), input=answer)


def test_a_scheduler_of_an_app_with_another_broker_does_not_start(used: Stack) -> None:
    with pytest.raises(StoreConflict, match=r"dispatches to redis://127.0.0.1:\d+/0, and this app's broker is .*/5"):
        start(used)
    assert (places(used), used.app.connection_for_read().default_channel.client.keys()) == ({"0"}, [])


def test_beat_says_so_in_a_line_and_ends(used: Stack) -> None:
    code, said = used.beat().end()
    assert (code, "Traceback" in said) == (1, False)
    assert "give each app a wheel_store of its own" in said


def test_a_broker_that_moved_is_claimed_once(used: Stack) -> None:
    assert (claim(used.app, answer="n\n").exit_code, places(used)) == (1, {"0"})
    claimed = claim(used.app, "--yes")
    assert (claimed.exit_code, places(used)) == (0, {"0", "5"}), claimed.output
    assert "the store dispatches to redis://" in claimed.output
    start(used)
    assert "already" in claim(used.app, "--yes").output


def test_the_doctor_names_the_other_broker(used: Stack) -> None:
    with Installation(used.app) as site:
        [found] = [one for one in broker.check(site) if one.grade is Grade.ERROR]
    assert (found.about, "claim-broker" in (found.remedy or "")) == ("other broker", True)


def test_a_broker_with_the_offsets_of_the_store_is_its_broker_by_any_name(stack: Stack) -> None:
    with stack.service():
        wait_until(lambda: stack.redis.exists("wheel.offset.0"), "the broker has offsets")
    stack.change(broker_url=stack.broker.replace("127.0.0.1", "127.1"))
    start(stack)
    with closing(open_store(stack.store, shards=None, create=False)) as store:
        assert len(store.brokers()) == 2


def test_no_task_is_drained_to_another_broker(used: Stack, tmp_path: Path) -> None:
    with closing(open_store(used.store, shards=None, create=False)) as store:
        for ways in ({"to_broker": True}, {"file": tmp_path / "tasks"}):
            with pytest.raises(StoreConflict, match="give each app a wheel_store of its own"):
                drain(used.app, store, **ways)  # type: ignore[arg-type]


def test_an_emptied_broker_is_still_the_broker_of_the_store(stack: Stack) -> None:
    start(stack)
    stack.redis.flushdb()
    start(stack)


def test_beat_waits_for_an_unknown_broker_that_is_down(used: Stack) -> None:
    beat = used.beat(broker_url="redis://127.0.0.1:1/0")
    beat.wait_for("beat waits for its broker", times=2)
    assert (beat.terminate(), "Traceback" in beat.said()) == (0, False)
