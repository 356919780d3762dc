"""A real worker receives eta messages of producers without the wheel, and moves them to the wheel."""

from datetime import UTC, datetime

import pytest

from celery_wheel.broker import wheel_queue_name
from tests.integration.drain.conftest import LeavingStack, now_ms, waiting
from tests.kit.patience import PATIENCE_S, patience, wait_until

RESCUE = {"wheel_rescue": True}

#: kombu returns the messages of a killed worker to Redis after a second.
RESTORED = {"visibility_timeout": 1, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}

FAR = datetime(2099, 1, 1, tzinfo=UTC)

#: Seconds until tasks are due that have to be in the wheel before.
SOON_S = 8


@pytest.mark.slow
def test_messages_of_other_producers_are_pending_in_the_wheel_and_run_once(stack: LeavingStack) -> None:
    stack.beat(**RESCUE)
    stack.worker(**RESCUE)
    stack.plain_app.control.revoke("revoked-1")
    stack["worker"].wait_for("revoked-1")
    old = stack.producer(type(stack.plain_app), task_protocol=1)
    ours = stack.producer(type(stack.app), **stack.settings, **RESCUE)
    in_s = patience(SOON_S)
    sent = {
        "plain": stack.send_eta("plain", in_s),
        "packed": stack.send_eta("packed", in_s, compression="gzip", headers={"greeting": "Grüße"}),
        "pickled": stack.send_eta("pickled", in_s, serializer="pickle"),
        "urgent": stack.send_eta("urgent", in_s, priority=6),
        "old": stack.send_eta("old", in_s, app=old),
        "topic": stack.send_eta("topic", in_s, exchange="news", routing_key="news.sport"),
        "direct": stack.send_eta("direct", in_s, exchange="shop", routing_key="order"),
        "expires": stack.send_eta("expires", in_s, expires=in_s + 60),
        "retried": stack.send_eta("retried", in_s, retries=1),
    }
    stays = {
        "near": stack.send_eta("near", 0.4),
        "left to Celery": stack.send_eta("left to Celery", in_s, app=ours, wheel=False),
        "expired": stack.send_eta("expired", in_s, expires=-5),
        "revoked": stack.send_eta("revoked", in_s, task_id="revoked-1"),
        "unknown": stack.plain_app.send_task("nobody's", countdown=in_s).id,
    }
    wait_until(lambda: sent.keys() <= tags(stack, sent), "all later tasks are in the store")
    assert not stack.notes().keys() & sent.keys()
    stack.wait_for(*sent, "near", "left to Celery", seconds=in_s + PATIENCE_S)
    wait_until(lambda: len(stack.notes()["retried"]) == 2, "the retry")
    stack.send_eta("the last", 0)
    stack.wait_for("the last")
    notes = stack.notes()
    assert {tag: len(found) for tag, found in notes.items()} == {
        **dict.fromkeys([*sent, "near", "left to Celery", "the last"], 1),
        "retried": 2,
    }
    assert all(note["ran_ms"] >= note["args"][0] for tag in sent for note in notes[tag])
    assert not tags(stack, stays)
    stack["worker"].wait_for("unregistered task")
    stored = stack.in_store()
    assert {tag: stored[id_][:2] for tag, id_ in sent.items()} == {
        **dict.fromkeys(sent, ("celery", "")),
        "topic": ("sport", ""),
        "direct": ("orders", ""),
    }
    assert stored[sent["urgent"]][2] == 6
    assert stored[sent["expires"]][3] is not None
    assert notes["packed"][0]["greeting"] == "Grüße"
    assert notes["urgent"][0]["delivery_info"]["priority"] == 6
    assert notes["plain"][0]["eta"] is None


def tags(stack: LeavingStack, sent: dict[str, str]) -> set[str]:
    stored = stack.in_store()
    return {tag for tag, id_ in sent.items() if id_ in stored}


def kept(stack: LeavingStack, ids: set[str]) -> set[str]:
    """Return the ids that the broker has. A message that kombu popped and has not recorded is lost with its worker."""
    if not stack.broker.startswith("redis"):
        return ids
    with stack.app.connection_for_write() as connection:
        client = connection.default_channel.client
        lists = [client.lrange(name, 0, -1) for name in ("celery", wheel_queue_name("wheel", 0))]
        found = b"".join([*lists[0], *lists[1], *client.hvals("unacked")])
    return {id_ for id_ in ids if id_.encode() in found}


def test_a_killed_worker_loses_and_doubles_no_rescued_message(stack: LeavingStack) -> None:
    """Some messages were published and not acknowledged: another worker gets them again, and the wheel knows them."""
    stack.worker(**RESCUE)
    ids = {stack.send_eta("far", 3_600) for _ in range(200)}
    wait_until(lambda: waiting(stack.app) >= 100, "half of the tasks are in the wheel queue")
    stack["worker"].kill()
    sent, ids = ids, kept(stack, ids)
    assert len(sent - ids) <= 1
    stack.beat()
    redis = stack.broker.startswith("redis")
    stack.worker(broker_transport_options=RESTORED if redis else {}, **RESCUE)
    wait_until(lambda: ids <= stack.in_store().keys(), "all tasks are in the store")
    wait_until(lambda: waiting(stack.app, "celery") == waiting(stack.app) == 0, "both queues are empty")
    assert len(stack.select("t.id")) == len(ids)


def test_a_message_that_is_delivered_again_is_accepted_once(stack: LeavingStack) -> None:
    """After a crash between publishing and acknowledging the same message is delivered and published again."""
    for _ in range(2):
        stack.plain_app.send_task("note", ("again", 0), eta=FAR, task_id="one-and-only")
    stack.worker(**RESCUE)
    wait_until(lambda: waiting(stack.app) == 2, "both are in the wheel queue")
    stack.beat()
    wait_until(lambda: waiting(stack.app) == 0, "they are accepted")
    # On Redis each message has an id, so these were two; on RabbitMQ nothing distinguishes them.
    expected = 2 if stack.broker.startswith("redis") else 1
    wait_until(lambda: len(stack.select("envelope_id")) == expected, f"{expected} rows")


@pytest.mark.slow
def test_without_the_setting_or_a_known_queue_the_worker_holds_the_message(stack: LeavingStack) -> None:
    stack.worker()
    stack.send_eta("held", 1.5)
    stack.wait_for("held")
    stack["worker"].terminate()
    assert waiting(stack.app) == 0
    stack.worker(**RESCUE)
    stack.send_eta("two queues", in_s := patience(SOON_S), exchange="news", routing_key="news.golf")
    if stack.broker.startswith("redis"):
        stack.wait_for("two queues", seconds=in_s + PATIENCE_S)
        assert waiting(stack.app) == 0
        stack["worker"].wait_for("2 of its queues")
        return
    # On RabbitMQ each copy names its queue, and goes back to it.
    wait_until(lambda: waiting(stack.app) == 2, "both are in the wheel queue")
    stack.beat()
    wait_until(lambda: sorted(stack.select("queue")) == [("every",), ("golf",)], "both are in the store")
    wait_until(lambda: len(stack.notes().get("two queues", ())) == 2, "each ran once", in_s + PATIENCE_S)


@pytest.mark.slow
def test_the_worker_holds_a_message_that_it_cannot_write_to_the_wheel_queue(stack: LeavingStack) -> None:
    """Something else has the queue's name: on RabbitMQ a queue of other arguments, on Redis a key of another type."""
    with stack.plain_app.connection_for_write() as connection:
        if stack.broker.startswith("redis"):
            connection.default_channel.client.set("wheel.0", "no list")
        else:
            connection.default_channel.queue_declare("wheel.0", durable=False, auto_delete=False)
    stack.worker(**RESCUE)
    began_ms, in_s = now_ms(), patience(4)
    stack.send_eta("held", in_s)
    stack.wait_for("held", seconds=in_s + PATIENCE_S)
    stack["worker"].wait_for("is held by this worker until its eta")
    stack["worker"].wait_for("publishing to the wheel queue failed")
    assert now_ms() - began_ms >= in_s * 1_000
