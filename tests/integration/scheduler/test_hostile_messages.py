"""Messages that a scheduler and a worker cannot read, or should not obey: what the run has written is searched.

A card's number stands in the body, the headers and the arguments of messages that are broken in many ways. It must be
in no log, reason, metric or output: in the stored bytes alone. A message that is a command to workers is rejected.
"""

import base64
import json
import urllib.request
import zlib
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from celery_wheel.control import Wheel
from celery_wheel.store import open_store
from tests.kit.patience import wait_until
from tests.kit.servers import free_port
from tests.kit.stack import Stack

MARK = "4111111111111111"
#: A name that begins a line of its own, and clears a line of a terminal.
FORGED = "a\n[2027-01-15 08:00:00,000: INFO/MainProcess] all is well\x1b[2K"

Change = Callable[[dict[str, Any]], Any]


def of_body(data: bytes, **headers: Any) -> Change:
    def change(message: dict[str, Any]) -> None:
        message["body"] = base64.b64encode(data).decode()
        message["headers"].update(headers)

    return change


def of_part(part: str, **values: Any) -> Change:
    return lambda message: message[part].update(values)


def of_envelope(**values: Any) -> Change:
    return lambda message: message["headers"]["wheel"].update(values)


#: Changes by which a message cannot be read in the wheel queue.
UNREADABLE: list[Change] = [
    lambda message: message.update(body=f"{MARK}!!"),
    lambda message: message.update(body=[MARK]),
    lambda message: message.update(body=f"é{MARK}"),
    lambda message: message.update(headers=MARK),
    lambda message: message.update(properties=[MARK]),
    lambda message: message.update({"content-type": [MARK]}),
    of_part("properties", body_encoding=MARK),
    of_part("headers", wheel=MARK),
    *(of_envelope(**{name: MARK}) for name in ("id", "eta_ms", "created_ms", "priority", "expires_ms", "on_conflict")),
    *(of_envelope(**{name: [MARK]}) for name in ("task", "task_id", "queue", "key", "unique", "batch", "v")),
    *(of_envelope(group=MARK), of_envelope(misfire_ms=-int(MARK)), of_envelope(unique=MARK + "\0")),
    of_envelope(watch=MARK),
]

#: Changes of messages that are accepted; their bodies are opened when they are cancelled.
UNDECODABLE: list[Change] = [
    of_body(b"\xff" + MARK.encode()),
    of_body(b'[["' + MARK.encode()),
    of_body(MARK.encode()),
    of_body(json.dumps([[MARK], {}, MARK]).encode()),
    of_body(b"[" * 100_000 + MARK.encode()),
    of_body(MARK.encode(), compression="zlib"),
    of_body(zlib.compress(b"\xff" + MARK.encode()), compression="zlib"),
    of_body(b"[[], {}, {}]", compression=MARK),
    of_body(json.dumps([[MARK], {}, {"chord": MARK, "callbacks": MARK}]).encode()),
    lambda message: message.update({"content-encoding": MARK}),
]


@pytest.fixture
def shop(stack: Stack) -> Stack:
    stack.change(result_backend=stack.server.url, wheel_metrics=f"127.0.0.1:{free_port()}", task_send_sent_event=True)
    return stack


def wire(stack: Stack, *changes: Change, **options: Any) -> bytes:
    """Return a message as the producer has sent it to the wheel queue, with changes."""
    task = stack.app.tasks[options.pop("name", "note")]
    task.apply_async(("plain",), **{"countdown": 3_600, **options})
    raw = stack.redis.lpop("wheel.0")
    assert isinstance(raw, bytes)
    message = json.loads(raw)
    for change in changes:
        change(message)
    return json.dumps(message).encode()


def metrics(stack: Stack) -> str:
    with urllib.request.urlopen(f"http://{stack.settings['wheel_metrics']}/metrics", timeout=10) as answer:
        return str(answer.read(), "utf-8")


def test_nothing_of_a_body_is_written_anywhere_but_into_the_store(shop: Stack) -> None:
    cut = wire(shop)[:-30]
    raws = [wire(shop, change) for change in UNREADABLE]
    raws += [cut + MARK.encode(), b"\xff" + MARK.encode(), b"[" * 100_000 + MARK.encode(), MARK.encode() * 400]
    raws += [b'{"headers": ' + b"9" * 5_000 + MARK.encode() + b"}", json.dumps(MARK).encode()]
    opened = [wire(shop, change, task_id=f"opened-{n}") for n, change in enumerate(UNDECODABLE)]
    ran = [wire(shop, change, task_id=f"ran-{n}", countdown=None, name="many") for n, change in enumerate(UNDECODABLE)]
    raws.append(wire(shop, of_body(f'{{"run": "{MARK}"}}'.encode()), of_envelope(task="celery_wheel.run_ended")))
    forged = wire(shop, of_envelope(task_id=FORGED, task=FORGED), task_id="forged", countdown=60)
    command = {"method": "shutdown", "arguments": {}, "destination": None}
    attack = wire(
        shop,
        of_body(json.dumps(command).encode()),
        of_envelope(exchange="celery.pidbox", exchange_type="fanout", routing_key="k", eta_ms=1),
    )
    worker = shop.worker("-P", "solo", "-E")
    beat = shop.celery("beat", "--pidfile", "", "-l", "DEBUG", name="beat")
    shop.wait_for_holder(beat)
    shop.redis.lpush("wheel.0", *raws, *opened, *ran, forged, attack)
    wheel: Wheel = shop.app.wheel
    wait_until(lambda: len(wheel.outcomes("rejected").items) == len(raws) + 1, "the broken messages are rejected", 60)
    wheel.cancel([f"opened-{n}" for n in range(len(opened))])
    shop.app.control.revoke_by_stamped_headers({"card": [MARK[::-1]]})
    wheel.run_now(FORGED)
    assert shop.app.send_task("note", ("after",), countdown=0.5)
    shop.wait_for("after")
    wait_until(lambda: not list(wheel.store.unannounced(0, -1, 10)), "each cancelled task is announced, once")
    worker.wait_for("] ignored")  # the message of the batch, after its calls
    said = [shop.output("wheel", "status")]
    reasons = [one.reason for one in wheel.outcomes("rejected").items]
    written = [beat.said(), worker.said(), metrics(shop), *said, *reasons]
    assert [text[max(0, text.find(MARK) - 300) :][:600] for text in written if MARK in text] == []
    assert worker.is_alive(), "a command to workers was rejected"
    assert sum("of the wheel, of Celery or of kombu" in one for one in reasons) == 1
    assert not [line for line in beat.said().splitlines() if line.endswith("all is well\x1b[2K")]
    assert max(map(len, reasons)) < 500


@pytest.mark.slow
def test_a_message_that_is_far_too_large_takes_no_memory_and_little_time(stack: Stack) -> None:
    """It is rejected with its beginning and its name, and the scheduler never holds it, also as it waits for it."""
    stack.change(wheel_max_message_bytes=2**20, wheel_metrics=f"127.0.0.1:{free_port()}")
    beat = stack.beat()
    stack.wait_for_holder(beat)
    ids = stack.send(0.1)
    wait_until(lambda: stack.dispatched() == ids, "a first task is dispatched")
    before, _ = beat.memory()
    stack.app.conf.wheel_max_message_bytes = 10**9  # a producer with other settings than the scheduler
    for n in range(3):  # the first comes while the scheduler waits in Redis, and the next stand in its queue
        stack.app.send_task("note", ("x" * 30_000_000,), countdown=60, task_id=f"large-{n}")
    ids += stack.send(0.1, count=5)
    wait_until(lambda: stack.dispatched() == ids, "the tasks behind them are dispatched", 30)
    metrics(stack)
    assert beat.memory()[0] - before < 30_000_000
    rejected = stack.app.wheel.outcomes("rejected").items
    assert {one.task_id for one in rejected} == {"large-0", "large-1", "large-2"}
    assert all(one.reason.endswith("; the store has only its beginning") for one in rejected)
    with closing(open_store(stack.store, create=False)) as store:
        kept = [one.message.body for one in store.handover.stopped(0, ["rejected"])]
    assert {len(one) for one in kept} == {2**16}
    assert all(one.startswith(b'{"body": "') for one in kept)
    assert not stack.redis.llen("wheel.0")
