"""The message of a row equals, byte for byte, that of ``apply_async`` with the same task id."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery._state import _task_stack
from kombu import Exchange, Queue

from celery_wheel.bulk_load.message_template import Sampler
from celery_wheel.bulk_load.row import FIELDS, OPTIONS
from celery_wheel.store.model import Message
from tests.unit.bulk_load.conftest import Inbox, load
from tests.unit.producer.memory_broker import Broker

NOW = datetime(2026, 11, 21, 9, 30, 15, 123457, UTC)
AT = NOW + timedelta(days=3, microseconds=1)
SIGNATURE = {"task": "proj.touch", "args": [], "kwargs": {}, "options": {}, "subtask_type": None, "immutable": True}

#: The first rows of a kind go by Celery's own code, later ones do not.
ROWS = 4

CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "countdown": {"eta": None, "countdown": 90},
    "a countdown that is a float": {"eta": None, "countdown": 90.0004},
    "a naive eta": {"eta": AT.replace(tzinfo=None)},
    "an eta elsewhere": {"eta": AT.astimezone(timezone(timedelta(hours=5, minutes=45)))},
    "an eta in a zone": {"eta": AT.astimezone(ZoneInfo("Europe/Berlin"))},
    "an eta that is text": {"eta": AT.isoformat()},
    "an eta of whole seconds": {"eta": AT.replace(microsecond=0)},
    "priority": {"priority": 7},
    "no priority": {"priority": 0},
    "expires in seconds": {"expires": 3600},
    "expires in a float": {"expires": 0.25},
    "expires at": {"expires": datetime(2099, 1, 1, tzinfo=UTC)},
    "expires at a naive time": {"expires": datetime(2099, 1, 1)},  # noqa: DTZ001
    "expires after the end of time": {"expires": datetime(9999, 6, 1, tzinfo=UTC)},
    "expires in text": {"expires": "2099-01-01T00:00:00+00:00"},
    "compressed": {"compression": "zlib"},
    "pickled": {"serializer": "pickle"},
    "in yaml": {"serializer": "yaml"},
    "headers": {"headers": {"tenant": "a", "nested": {"x": [1, None]}, "when": AT, "é": "\ud800", "100%": "%s"}},
    "no headers": {"headers": {}},
    "a header called wheel": {"headers": {"wheel": {"spokes": 32}, "other": 1}},
    "a header of Celery's": {"headers": {"origin": "elsewhere"}},
    "no result": {"ignore_result": True},
    "limits": {"time_limit": 10, "soft_time_limit": 5},
    "shadow": {"shadow": "another name"},
    "shown otherwise": {"argsrepr": "(…)", "kwargsrepr": "{…}"},
    "not persistent": {"delivery_mode": 1},
    "reply_to": {"reply_to": "somewhere"},
    "custom property": {"app_id": "billing"},
    "stamps": {"stamped_headers": ["order"], "order": "42"},
    "retries": {"retries": 2, "root_id": "r", "parent_id": "p"},
    "group": {"group_id": "g", "group_index": 3},
    "link": {"link": SIGNATURE},
    "links": {"link": [SIGNATURE, SIGNATURE], "link_error": SIGNATURE},
    "a rest of a chain": {"chain": [SIGNATURE]},
    "in a chord": {"chord": SIGNATURE, "group_id": "g"},
    "queue": {"queue": "mail"},
    "a queue that nobody knows": {"queue": "new"},
    "a queue as such": {"queue": Queue("own", Exchange("own", "topic"), "own.#")},
    "an exchange": {"exchange": "news", "routing_key": "news.sport", "exchange_type": "topic"},
    "a routing key": {"queue": "news", "routing_key": "news.sport"},
    "key": {"wheel": {"key": "order:ü"}},
    "a short key": {"wheel": {"key": "k"}},
    "one retry policy": {"retry": False, "retry_policy": {"max_retries": 1}},
}

#: (settings, options of the task)
APPS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "protocol 1": ({"task_protocol": 1}, {}),
    "events": ({"task_send_sent_event": True}, {}),
    "routes": ({"task_routes": {"proj.t*": {"queue": "mail", "priority": 3, "wheel": {"key": "r"}}}}, {}),
    "a router": ({"task_routes": [lambda name, *_, **__: {"queue": "mail"}]}, {}),
    "its own defaults": (
        {"task_default_queue": "d%s", "task_default_priority": 2, "task_default_delivery_mode": 1},
        {},
    ),
    "compression": ({"task_compression": "zlib", "task_serializer": "pickle", "accept_content": ["pickle"]}, {}),
    "a zone": ({"timezone": "Asia/Kathmandu", "enable_utc": False}, {}),
    "shards": ({"wheel_shards": 5}, {}),
    "a topic": ({"task_default_exchange": "news", "task_default_exchange_type": "topic"}, {}),
    "task: serializer": ({}, {"serializer": "yaml", "compression": "bzip2"}),
    "task: queue": ({}, {"queue": "mail", "priority": 9}),
    "task: expires": ({}, {"expires": 60.5}),
    "task: expires at": ({}, {"expires": AT}),
    "task: limits": ({}, {"time_limit": 9, "soft_time_limit": 3, "ignore_result": True}),
    "task: untyped": ({}, {"typing": False}),
    "task: bound": ({}, {"bind": True}),
    "task: shadow": ({}, {"shadow_name": lambda self, args, kwargs, options: f"shadow of {args[0]}"}),
    "few levels shown": ({"task_repr_maxlevels": 1, "task_argsrepr_maxsize": 30}, {}),
}


@pytest.fixture
def make_task(make_app: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    def make(name: str) -> Any:
        settings, options = APPS[name]
        queues = [Queue("mail"), Queue("news", Exchange("news", "topic"), "news.#")]
        own = "task_default_queue" in settings or "task_default_exchange" in settings
        app = make_app(**({} if own else {"task_queues": [*queues, Queue("celery")]}), **settings)
        monkeypatch.setattr(app, "now", lambda: NOW.astimezone(app.timezone))

        def remind(*args: Any, **kwargs: Any) -> None: ...

        return app.task(name="proj.to_test", shared=False, **options)(remind)

    return make


def arguments(number: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    values = [number, "it's ü\n", 1.5, None, True, [1, {"x": "y"}], AT, "long " * 30, ""]
    return (number, *values[number:]), {"who": f"user {number}", "what": values[-number]}


def rows_of(task: Any, options: dict[str, Any], kind: str) -> Iterator[Any]:
    for number in range(ROWS):
        args, kwargs = arguments(number)
        given = {"task_id": f"id-{number}", **options}
        if kind == "signature":
            yield task.signature(args, kwargs, **given)
        elif kind == "serialised":
            yield dict(task.signature(args, kwargs, **given))
        elif kind == "dict":
            key = (given.pop("wheel", None) or {}).get("key")
            yield {"task": task, "args": args, "kwargs": kwargs, "key": key, **given}
        else:
            yield tuple({**given, "task": "proj.to_test", "args": args, "kwargs": kwargs}.get(name) for name in FIELDS)


def comparable(message: Message) -> dict[str, Any]:
    """Return all fields except random ones."""
    return {**asdict(message), "envelope_id": None, "created_ms": None}


def check(task: Any, broker: Broker, options: dict[str, Any], kind: str) -> None:
    options = {"eta": AT, **options}
    inbox = Inbox(task.app.conf.get("wheel_shards", 1))
    ids = [f"id-{number}" for number in range(ROWS)]
    for number in range(ROWS):
        args, kwargs = arguments(number)
        task.apply_async(args, kwargs, task_id=f"id-{number}", **options)
    sent = [one for shard in range(inbox.shards) for one in broker.waiting(shard)]
    done = load(task.app, inbox, rows_of(task, options, kind), keep_ids=True)
    assert done.ids == ids
    found = {one.task_id: comparable(one) for one in inbox.messages()}
    assert found == {one.task_id: comparable(one) for one in sent}
    assert len(found) == ROWS


@pytest.mark.parametrize("call", CALLS)
def test_the_message_equals_that_of_apply_async(make_task: Callable[[str], Any], broker: Broker, call: str) -> None:
    options = CALLS[call]
    kinds = ["signature"]
    if options.keys() <= {*FIELDS, *OPTIONS, "wheel"}:
        kinds.append("dict")
    if options.keys() <= {*FIELDS}:
        kinds.append("tuple")
    if call not in ("headers", "a queue as such"):
        kinds.append("serialised")
    for kind in kinds:
        check(make_task("plain"), broker, options, kind)


SOME_CALLS = (
    "plain",
    "countdown",
    "expires in seconds",
    "headers",
    "compressed",
    "key",
    "queue",
    "priority",
    "links",
)


@pytest.mark.filterwarnings("ignore:(?s).*task attribute is deprecated")
@pytest.mark.parametrize(
    ("app_name", "call"),
    # Apps with other default queues and exchanges have no queue named mail.
    [(app, call) for app in APPS for call in SOME_CALLS if call != "queue" or "default_" not in str(APPS[app][0])],
)
def test_the_message_equals_that_of_apply_async_with_other_settings(
    make_task: Callable[[str], Any], broker: Broker, app_name: str, call: str
) -> None:
    check(make_task(app_name), broker, CALLS[call], "signature")


@contextmanager
def within(task: Any, **request: Any) -> Iterator[None]:
    """Call as a task that a worker runs."""
    _task_stack.push(task)
    task.push_request(called_directly=False, delivery_info={"priority": 6}, **request)
    try:
        yield
    finally:
        task.pop_request()
        _task_stack.pop()


@pytest.mark.parametrize("call", ["plain", "countdown", "links", "retries"])
def test_the_message_equals_that_of_apply_async_within_a_task(
    make_task: Callable[[str], Any], broker: Broker, call: str
) -> None:
    task = make_task("plain")
    task.app.conf.task_inherit_parent_priority = True
    with within(task.app.tasks["proj.touch"], id="parent", root_id="root", children=[]):
        check(task, broker, CALLS[call], "signature")


def test_the_message_equals_that_of_send_task_where_no_such_task_is_registered(
    app: Any, broker: Broker, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "now", lambda: NOW)
    for number in range(ROWS):
        args, kwargs = arguments(number)
        app.send_task("elsewhere.remind", args, kwargs, task_id=f"id-{number}", eta=AT, queue="mail")
    rows = [
        ("elsewhere.remind", *arguments(number), AT, "mail", None, None, None, f"id-{number}") for number in range(ROWS)
    ]
    load(app, inbox, rows)
    assert len(inbox.messages()) == ROWS
    assert [comparable(one) for one in inbox.messages()] == [comparable(one) for one in broker.waiting()]


FAST = {
    "plain": 2,
    "countdown": 2,
    "priority": 2,
    "expires at": 2,
    "headers": 2,
    "compressed": 2,
    "pickled": 2,
    "key": 2,
    "a short key": 2,
    "queue": 2,
    "no result": 2,
    "link": ROWS,
    "stamps": ROWS,
    "expires in text": ROWS,
}


@pytest.mark.parametrize("call", FAST)
def test_celerys_own_code_makes_only_the_first_two_messages_of_a_kind(
    make_task: Callable[[str], Any], inbox: Inbox, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Otherwise the comparisons above would compare Celery's code with itself."""
    calls = []
    send = Sampler.send
    monkeypatch.setattr(Sampler, "send", lambda self, call: calls.append(call) or send(self, call))
    task = make_task("plain")
    load(task.app, inbox, rows_of(task, {"eta": AT, **CALLS[call]}, "signature"))
    assert len(calls) == FAST[call]


def test_rows_without_an_id_get_one_that_sorts(app: Any, inbox: Inbox) -> None:
    done = load(app, inbox, [("proj.touch", (), {}, AT) for _ in range(50)], keep_ids=True)
    messages = inbox.messages()
    assert done.ids == [one.task_id for one in messages] == sorted({one.task_id for one in messages})
    assert len({one.envelope_id for one in messages}) == 50


def test_the_same_task_id_twice_makes_two_messages(app: Any, inbox: Inbox) -> None:
    load(app, inbox, [("proj.touch", (), {}, AT, None, None, None, None, "same")] * 5)
    assert len({one.envelope_id for one in inbox.messages()}) == 5
