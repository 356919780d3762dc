"""The matrix: a function for every way of sending a delayed task.

A case is sent twice: delayed, and at once by the same call without its delay. The two must arrive alike.
"""

import json
import pickle
import time
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import celery
from celery import chain, chord, group
from celery.canvas import StampingVisitor
from celery.result import GroupResult

from celery_wheel import install
from tests.kit.project import queues_of
from tests.kit.stack import Stack

NOTE = "note"

TOPIC = [("world", "news", "topic", "news.world.#"), ("anything", "news", "topic", "news.#")]
QUEUES = [("celery", "celery", "direct", "celery"), ("emails", "emails", "direct", "emails"), *TOPIC]


@dataclass
class Sent:
    """A case that was sent; no note of it may be written before ``due_ms``."""

    due_ms: int = 0
    result: Any = None
    id: str = ""
    state: str = ""
    value: Any = None

    def settle(self) -> None:
        if self.result is None:
            return
        self.id = self.result.id
        if isinstance(self.result, GroupResult):
            self.value = [one.result for one in self.result.results]
        else:
            self.state, self.value = self.result.state, self.result.result
        self.result = None


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def in_seconds(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def options(**options: Any) -> Callable[[Any, str, dict[str, Any]], Any]:
    return lambda app, tag, delay: app.send_task(NOTE, (tag, "ü", 1), {"k": [None]}, **options, **delay)


def with_own_producer(app: Any, tag: str, delay: dict[str, Any]) -> Any:
    with app.connection_for_write() as connection:
        return app.send_task(NOTE, (tag,), producer=app.amqp.Producer(connection), **delay)


def with_own_connection(app: Any, tag: str, delay: dict[str, Any]) -> Any:
    with app.connection_for_write() as connection:
        return app.send_task(NOTE, (tag,), connection=connection, **delay)


class Order(StampingVisitor):  # type: ignore[misc]
    def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
        return {"order": "42"}


def stamped(app: Any, tag: str, delay: dict[str, Any]) -> Any:
    signature = app.signature(NOTE, args=(tag,))
    signature.stamp(Order())
    return signature.apply_async(**delay)


#: Two queues are bound to the topic exchange, and both match.
TWICE = ("topic exchange", "topic queue")

#: Ways to send a single message; each runs once delayed and once at once.
CALLS: dict[str, Callable[[Any, str, dict[str, Any]], Any]] = {
    "plain": options(),
    "task": lambda app, tag, delay: app.tasks[NOTE].apply_async((tag, 1), **delay),
    "signature": lambda app, tag, delay: app.tasks[NOTE].s(tag, 1).set(**delay).apply_async(),
    "queue": options(queue="emails"),
    "topic exchange": options(exchange="news", routing_key="news.world.eu", declare=queues_of(TOPIC)),
    "topic queue": options(queue="world", routing_key="news.world.asia"),
    "priority": options(priority=6),
    "headers": options(headers={"tenant": "a", "deep": {"x": [1, 2.5, None, "é"]}}),
    "a header called wheel": options(headers={"wheel": {"spokes": 32}}),
    "compressed": options(compression="zlib"),
    "expires": options(expires=600),
    "limits": options(time_limit=60, soft_time_limit=50),
    "no result": options(ignore_result=True),
    "shadow": options(shadow="another name"),
    "stamped": stamped,
    "own producer": with_own_producer,
    "own connection": with_own_connection,
    "large": lambda app, tag, delay: app.send_task(NOTE, (tag, "x" * 1_000_000), **delay),
    "keyed": lambda app, tag, delay: app.send_task(NOTE, (tag,), **delay, wheel={"key": "order:42"}),
}

#: Messages for a queue that no worker consumes: their bytes are compared there in the end.
UNREAD = "unread"
WIRES: dict[str, dict[str, Any]] = {
    "plain": {},
    "priority": {"priority": 6},
    "priority 0": {"priority": 0},
    "priority out of range": {"priority": 12},
    "headers": {"headers": {"tenant": "é", "wheel": {"spokes": 32}, "n": float("nan")}},
    "not ASCII": {"args": ("påske \U0001f430",), "headers": {"greeting": "Grüße ✓", "q": '"\\/\n'}},
    "a time in the headers": {"headers": {"at": {"__type__": "datetime", "__value__": "2026-01-01"}}},
    "stamps": {"headers": {"stamped_headers": ["tenant"], "stamps": {"tenant": [["a"]]}}},
    "compressed": {"compression": "bzip2"},
    "pickle": {"serializer": "pickle", "args": ({1, 2}, b"\x00\xff")},
    "compressed pickle": {"serializer": "pickle", "compression": "zlib", "args": ("a" * 2_000,)},
    "bytes": {"args": (b"\x00\xff",)},
    "large": {"args": ("x" * 300_000,)},
    "not persistent": {"delivery_mode": 1},
    "no result": {"ignore_result": True, "time_limit": 5},
    "properties": {"app_id": "billing", "reply_to": "elsewhere", "message_id": "m-1", "timestamp": 5},
}

#: Apps that send: they differ in settings, the worker does not.
APPS: dict[str, Callable[[Stack], Any]] = {
    "default": lambda stack: stack.app,
    "protocol 1": lambda stack: a_producer(stack, task_protocol=1),
    "Tokyo": lambda stack: a_producer(stack, timezone="Asia/Tokyo"),
    "no UTC": lambda stack: a_producer(stack, timezone="America/New_York", enable_utc=False),
    "installed": lambda stack: install(a_producer(stack, kind=celery.Celery)),
    "pickled": lambda stack: pickle.loads(pickle.dumps(a_producer(stack))),  # noqa: S301  # our own bytes
}


def a_producer(stack: Stack, **settings: Any) -> Any:
    return stack.make_app(**{**stack.settings, **settings})


def delays() -> dict[str, tuple[dict[str, Any], int]]:
    """Return ways to name a time, each with the instant that it means."""
    at, tokyo = in_seconds(1), in_seconds(1).astimezone(zoneinfo.ZoneInfo("Asia/Tokyo"))
    found = {
        "aware eta": ({"eta": at}, ms(at)),
        "eta elsewhere": ({"eta": tokyo}, ms(tokyo)),
        "naive eta": ({"eta": at.replace(tzinfo=None)}, ms(at)),
        "text eta": ({"eta": at.isoformat()}, ms(at)),
    }
    for countdown in (0.2, 0.5, 1, 1.5):
        found[f"countdown {countdown}"] = ({"countdown": countdown}, now_ms() + int(countdown * 1000))
    return found


def send_chain(app: Any) -> Sent:
    add = app.tasks["add"]
    first, second = add.s(1, 2, "chain 1").set(countdown=0.5), add.s(10, "chain 2").set(countdown=0.6)
    return Sent(now_ms() + 500, chain(first, second, add.s(100, "chain 3"))())


def send_group(app: Any) -> Sent:
    parts = group(app.tasks["add"].s(i, 1, "group") for i in range(5))
    return Sent(now_ms() + 600, parts.apply_async(countdown=0.6))


def send_skewed(app: Any) -> Sent:
    parts = group(app.tasks["add"].s(i, 1, "skew") for i in range(3))
    return Sent(now_ms() + 300, parts.skew(0.3, 2, 0.3)())


def send_chord(app: Any) -> Sent:
    header = [app.tasks["add"].s(i, 1, "chord") for i in range(4)]
    return Sent(now_ms() + 500, chord(header)(app.tasks["total"].s("chord body"), countdown=0.5))


def send_linked(app: Any) -> Sent:
    note = app.tasks[NOTE]
    link = note.si("linked").set(countdown=0.3)
    return Sent(now_ms() + 400, note.apply_async(("link",), countdown=0.4, link=link))


def send_grouped(app: Any) -> Sent:
    link = app.tasks[NOTE].si("grouped link")
    return Sent(result=app.tasks["retried"].apply_async(("grouped", 2), link=link, wheel={"group": "tenant:42"}))


def send_failing(app: Any) -> Sent:
    link = app.tasks["failed"].s()
    return Sent(now_ms() + 400, app.tasks["failing"].apply_async(("boom",), countdown=0.4, link_error=link))


def send_many(app: Any) -> Sent:
    at = in_seconds(1.5)
    with app.producer_pool.acquire() as producer:
        for number in range(300):
            app.send_task(NOTE, (f"many {number}",), eta=at, producer=producer)
    return Sent(ms(at))


def send_immediate(app: Any) -> Sent:
    app.send_task(NOTE, ("countdown 0",), countdown=0)
    app.send_task(NOTE, ("past countdown",), countdown=-30)
    app.send_task(NOTE, ("past eta",), eta=in_seconds(-30))
    return Sent()


#: name → (function that sends it, {tag: expected number of runs})
SCENES: dict[str, tuple[Callable[[Any], Sent], dict[str, int]]] = {
    "retry": (lambda app: Sent(result=app.tasks["retried"].apply_async(("retry", 2), queue="emails")), {"retry": 3}),
    "autoretry": (lambda app: Sent(result=app.tasks["backing_off"].delay("autoretry")), {"autoretry": 2}),
    "chain": (send_chain, {"chain 1": 1, "chain 2": 1, "chain 3": 1}),
    "group": (send_group, {"group": 5}),
    "skew": (send_skewed, {"skew": 3}),
    "chord": (send_chord, {"chord": 4, "chord body": 1}),
    "link": (send_linked, {"link": 1, "linked": 1}),
    "grouped": (send_grouped, {"grouped": 3, "grouped link": 1}),
    "link_error": (send_failing, {"link_error": 1}),
    "expired": (lambda app: Sent(result=app.send_task(NOTE, ("expired",), countdown=1, expires=0.2)), {"expired": 0}),
    "in a year": (
        lambda app: Sent(result=app.send_task(NOTE, ("in a year",), countdown=365 * 86_400)),
        {"in a year": 0},
    ),
    "many": (send_many, {f"many {number}": 1 for number in range(300)}),
    "native": (
        lambda app: Sent(now_ms() + 800, app.send_task(NOTE, ("native",), countdown=0.8, wheel=False)),
        {"native": 1},
    ),
    "immediate": (send_immediate, {"countdown 0": 1, "past countdown": 1, "past eta": 1}),
}

#: Calls and scenes whose results are looked at.
WITH_RESULT = ("plain", "group", "chord", "retry", "chain", "expired")


def comparable(note: dict[str, Any]) -> str:
    other = {name: value for name, value in note.items() if name not in ("tag", "ran_ms", "id", "expires", "delivery")}
    return json.dumps({**other, "expires": note["expires"] is not None}, sort_keys=True)
