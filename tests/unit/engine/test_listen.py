"""Listen: an idle ingest asks the broker nothing, and no message or command waits longer for that."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from unittest import mock

from celery_wheel.engine.round import Round
from celery_wheel.engine.runner import AT_ONCE, UNTIL_WOKEN, Runner
from celery_wheel.errors import BrokerError
from tests.unit.engine.conftest import Rig


def listening(rig: Rig) -> Iterator[str | Round]:
    """Return the round of listen whose call is open."""
    rig.run("tend", "ingest")
    steps = rig.engine.listen()
    assert next(steps) == "listens"
    return steps


def test_ingest_peeks_again_when_listen_has_found_a_message(rig: Rig) -> None:
    steps = listening(rig)
    with mock.patch.object(rig.broker, "peek") as peek:
        rig.run("ingest", rounds=3)
        peek.assert_not_called()
    assert not rig.engine.may_have_messages
    rig.send("one", 1_000)
    assert list(steps) == [Round.IDLE]
    assert rig.engine.arrived.is_set()
    assert rig.engine.may_have_messages
    assert rig.run("ingest") is Round.BUSY
    assert rig.run("ingest") is Round.IDLE
    assert rig.engine.stats.accepted == 1
    assert (rig.engine.arrived.is_set(), rig.engine.emptied.is_set()) == (False, True)


def test_a_message_between_the_peek_and_the_call_is_found(rig: Rig) -> None:
    rig.run("tend", "ingest")
    rig.send("one", 1_000)
    rig.run("listen")
    assert rig.engine.arrived.is_set()


def test_a_command_is_answered_after_a_peek(rig: Rig) -> None:
    """The message was sent before the command, and the broker has not told of it yet."""
    listening(rig)
    rig.send("one", 1_000)
    number = str(uuid.UUID(int=7))
    rig.store.put_inbox(0, [("cancel", json.dumps({"task_ids": ["one"], "id": number}).encode())])
    rig.run("ingest")
    assert rig.store.answer(number) == {"one": "done"}


def test_ingest_peeks_at_each_poll_where_the_broker_cannot_wait_or_does_not_answer(rig: Rig) -> None:
    rig.run("tend", "ingest")
    for answer in ({"return_value": None}, {"side_effect": BrokerError("no answer")}):
        with mock.patch.object(rig.broker, "await_message", **answer):
            assert rig.run("listen") is Round.FAILED
        assert rig.engine.may_have_messages
        with mock.patch.object(rig.broker, "peek", wraps=rig.broker.peek) as peek:
            rig.run("ingest")
            peek.assert_called_once()


def test_a_failed_peek_is_repeated(rig: Rig) -> None:
    rig.run("tend", "ingest")
    with mock.patch.object(rig.broker, "peek", side_effect=BrokerError("no answer")):
        assert rig.run("ingest") is Round.FAILED
    assert rig.engine.arrived.is_set()


def test_listen_waits_until_a_peek_has_found_nothing(rig: Rig) -> None:
    """Also where no shard is held any more: a job that ran again at once would keep a core busy."""
    [jobs] = Runner(rig.engine, lease_ms=2_000, poll_ms=50).shards
    jobs.cancel()  # no thread of the pool runs one: the test does
    rig.run("tend", "ingest")
    rig.run("listen")
    assert jobs._after_listen(Round.IDLE, 2.0) == AT_ONCE, "nothing was found, so the next call finds what comes"
    rig.send("one", 1_000)
    rig.run("listen")
    assert jobs._after_listen(Round.IDLE, 0.0) == UNTIL_WOKEN
    with mock.patch.object(rig.engine.emptied, "listener") as wake:
        rig.run("ingest")
        wake.assert_not_called()
        rig.run("ingest")
        wake.assert_called_once()
    rig.run("release")
    assert rig.run("listen") is Round.IDLE
    assert jobs._after_listen(Round.IDLE, 0.0) == UNTIL_WOKEN
