"""Messages of any rows equal, byte for byte, those of ``apply_async``, that is of Celery's own code.

A load has some kinds of rows in any order, so that each is rendered as its first row, its second and later ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import celery
import pytest
from celery import Celery as PlainCelery
from celery import Signature, Task, signals
from celery.app.amqp import AMQP
from celery.app.routes import Router
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kombu.serialization import register, unregister

from celery_wheel import Celery, install
from celery_wheel.bulk_load import schedule_many
from celery_wheel.bulk_load.renderer import is_plain_app, is_plain_task
from tests.unit.bulk_load.conftest import Inbox, load
from tests.unit.bulk_load.test_same_message import comparable
from tests.unit.producer.memory_broker import Broker, read_message

NOW = datetime(2026, 11, 21, 9, 30, 15, 123457, UTC)

ODD = ["100%", "%s", "it's", '"\\', "\0", "\ud800", "ü 🕰", "\x1e\x1f", "x" * 3_000]
TEXT = st.text(max_size=8) | st.sampled_from(ODD)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))
#: Texts that a store can hold as an id or a key.
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)

ROWS = st.fixed_dictionaries(
    {
        "args": st.lists(VALUES, max_size=3).map(tuple),
        "kwargs": st.dictionaries(TEXT, VALUES, max_size=2),
        "eta": st.timedeltas(timedelta(minutes=1), timedelta(days=9)).map(lambda later: NOW + later),
    },
    optional={
        "key": NAMES,
        "task_id": NAMES,
        "headers": st.dictionaries(TEXT | st.sampled_from(["origin", "wheel", "shadow", "tenant"]), VALUES, max_size=2),
    },
)
KINDS = st.fixed_dictionaries(
    {"task": st.sampled_from(["proj.touch", "proj.keyed", "proj.mailed", "proj.elsewhere"])},
    optional={
        "queue": st.sampled_from(["mail", "celery"]),
        "priority": st.integers(0, 9),
        "expires": st.integers(1, 9_999) | st.just(NOW + timedelta(days=1)) | st.just("2099-01-01T00:00:00+00:00"),
        "serializer": st.sampled_from(["json", "pickle", "yaml", "own"]),
        "compression": st.sampled_from(["gzip", "bzip2"]),
        "ignore_result": st.booleans(),
        "time_limit": st.integers(1, 9),
        "shadow": TEXT,
        "argsrepr": TEXT,
        "retries": st.integers(0, 3),
        "link": st.just({"task": "proj.touch", "args": [], "kwargs": {}, "options": {}, "subtask_type": None}),
        "stamps": st.dictionaries(st.sampled_from(["order", "tenant"]), TEXT, min_size=1),
        "wheel": st.sampled_from([{"misfire": "skip"}, {"watch": "o:42"}, {"unique": "one", "on_conflict": "keep"}]),
    },
)


def routed_by_arguments(name: str, args: Any, *_: Any, **__: Any) -> Any:
    return {"queue": "mail" if args and args[0] is None else "celery"}


class OwnTask(Task):
    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        options["headers"] = {**(options.get("headers") or {}), "first": repr((args or [None])[0])}
        return super().apply_async(args, kwargs, **options)


class ShadowTask(Task):
    def shadow_name(self, args: Any, kwargs: Any, options: Any) -> str:
        return f"shadow of {len(args)}"


class OwnMessage(AMQP):
    def as_task_v2(self, task_id: str, name: str, args: Any = None, *rest: Any, **options: Any) -> Any:
        message = super().as_task_v2(task_id, name, args, *rest, **options)
        message.headers["size"] = len(args or ())
        return message


class OwnSender(AMQP):
    @property
    def send_task_message(self) -> Any:
        send = self._create_task_sender()

        def counted(producer: Any, name: str, message: Any, **options: Any) -> Any:
            message.headers["size"] = len(message.body[0])
            return send(producer, name, message, **options)

        return counted


class OwnApp(Celery):
    def send_task(self, name: str, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        options["headers"] = {**(options.get("headers") or {}), "size": len(args or ())}
        return super().send_task(name, args, kwargs, *rest, **options)


KEYED = {"proj.keyed": {"wheel": {"key": "route"}}, "proj.m*": {"queue": "mail", "priority": 3}}

#: (class of the app, of its amqp, of its tasks, settings)
APPS: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "plain": (Celery, None, None, {"task_routes": KEYED}),
    "other defaults": (
        Celery,
        None,
        None,
        {"task_serializer": "own", "task_compression": "gzip", "wheel_shards": 3},
    ),
    "protocol 1": (Celery, None, None, {"task_protocol": 1}),
    "a router of arguments": (Celery, None, None, {"task_routes": [routed_by_arguments]}),
    "its own apply_async": (Celery, None, OwnTask, {}),
    "its own shadow name": (Celery, None, ShadowTask, {}),
    "its own messages": (Celery, OwnMessage, None, {}),
    "its own sender": (Celery, OwnSender, None, {}),
    "its own send_task": (OwnApp, None, None, {}),
}


@pytest.fixture(autouse=True)
def own_serializer() -> Iterator[None]:
    """A serializer of bytes, like MessagePack."""
    register("own", lambda body: repr(body).encode("utf-8", "surrogatepass"), None, "application/x-own", "binary")
    yield
    unregister("own")


@pytest.fixture(params=APPS)
def any_app(request: pytest.FixtureRequest, make_app: Callable[..., Any]) -> Any:
    kind, amqp, task, config = APPS[request.param]
    app = make_app(kind, accept_content=["json", "pickle", "yaml", "own"], **config)
    app.amqp_cls, app.task_cls = amqp or app.amqp_cls, task or app.task_cls
    app.now = lambda: NOW  # relative times must be equal in both ways
    for name in ("proj.keyed", "proj.mailed"):

        @app.task(name=name, shared=False)
        def remind(*args: Any, **kwargs: Any) -> None: ...

    app.finalize()
    return app


def options_of(row: dict[str, Any]) -> dict[str, Any]:
    options = {name: value for name, value in row.items() if name not in ("task", "args", "kwargs", "key", "stamps")}
    if "key" in row:
        options["wheel"] = {**options.get("wheel", {}), "key": row["key"]}
    if "stamps" in row:
        options |= {"stamped_headers": [*row["stamps"]], **row["stamps"]}
    return options


def loaded(app: Any, rows: list[dict[str, Any]]) -> tuple[Inbox, dict[int, str]]:
    """Return the inbox, and the task ids of the good rows."""
    inbox, wrong = Inbox(app.conf.get("wheel_shards", 1)), set[int]()
    signatures = [Signature(row["task"], row["args"], row["kwargs"], options_of(row), app=app) for row in rows]
    done = schedule_many(app, inbox, signatures, keep_ids=True, rejected=lambda number, _: wrong.add(number - 1))
    good = [number for number in range(len(rows)) if number not in wrong]
    assert done.ids is not None
    return inbox, dict(zip(good, done.ids, strict=True))


def sent(app: Any, row: dict[str, Any], task_id: str | None) -> bool:
    """Send a row; returns whether ``apply_async`` accepted it."""
    options = options_of(row) | ({} if task_id is None else {"task_id": task_id})
    try:
        if row["task"] in app.tasks:
            app.tasks[row["task"]].apply_async(row["args"], row["kwargs"], **options)
        else:
            app.send_task(row["task"], row["args"], row["kwargs"], **options)
    except Exception:  # of YAML without surrogates …
        return False
    return True


def check(app: Any, rows: list[dict[str, Any]]) -> int:
    """Compare the messages of rows; returns the number of good rows."""
    inbox, ids = loaded(app, rows)
    taken = [number for number, row in enumerate(rows) if sent(app, row, ids.get(number))]
    assert taken == sorted(ids)
    waiting = [one for shard in range(inbox.shards) for one in Broker().waiting(shard)]
    loads = [commit.get(shard, ()) for shard in range(inbox.shards) for commit in inbox.commits]
    found = [read_message(raw) for load in loads for raw in load]
    assert [comparable(one) for one in found] == [comparable(one) for one in waiting]
    return len(found)


@settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(data=st.data())
def test_the_messages_of_any_rows_equal_those_of_apply_async(any_app: Any, data: st.DataObject) -> None:
    kinds = data.draw(st.lists(KINDS, min_size=1, max_size=2))
    chosen = data.draw(st.lists(st.tuples(st.sampled_from(kinds), ROWS), min_size=3, max_size=8))
    check(any_app, [{**kind, **row} for kind, row in chosen])


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"task": "proj.touch", "args": (number,), "kwargs": {}, "eta": NOW + timedelta(hours=1), **more}


@pytest.mark.parametrize(
    "rows",
    [
        [row(n, **({} if n in (2, 5) else {"key": "own"}), task="proj.keyed") for n in range(7)],
        [row(n, headers={"tenant": n, "when": NOW}) for n in range(4)],
        [row(n, headers={"tenant": n} if n > 2 else {}) for n in range(6)],
        [row(n, task_id=f"🕰{n}", key="kü") for n in range(4)],
        [row(n, args=("x" * 200_000, n)) for n in range(4)],
        [row(n, args=(None, n) if n == 3 else (n,)) for n in range(6)],
        [row(n, args=(datetime(2030, 1, n + 1, tzinfo=UTC), {"__type__": "date"})) for n in range(4)],
        [row(n, serializer="pickle", compression="gzip", args=({n}, NOW)) for n in range(4)],
    ],
    ids=["own and route's keys", "headers", "some headers", "unicode", "huge", "one of them odd", "times", "pickle"],
)
def test_rows_that_differ_after_the_second_equal_those_of_apply_async(any_app: Any, rows: list[dict[str, Any]]) -> None:
    assert check(any_app, rows) == len(rows)


@pytest.mark.parametrize("signal", [signals.before_task_publish, signals.task_sent], ids=["before", "sent"])
def test_messages_with_receivers_of_signals_equal_those_of_apply_async(any_app: Any, signal: Any) -> None:
    called: list[Any] = []

    def receiver(headers: Any = None, **said: Any) -> None:
        called.append(said)
        if headers is not None:
            headers["count"] = said["body"][0][0] if isinstance(said["body"], tuple) else 0

    signal.connect(receiver)
    try:
        assert check(any_app, [row(n) for n in range(5)]) == 5
    finally:
        signal.disconnect(receiver)
    assert len(called) == 10


def wrapped(function: Any) -> Any:
    """Wrap a function as instrumentations do: name and module are kept."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        message = function(*args, **kwargs)
        if kwargs.get("task_id", args[1] if len(args) > 1 else None) == "id-4" and hasattr(message, "headers"):
            message.headers["traced"] = True
        return message

    return inner


@pytest.mark.parametrize(
    ("owner", "name"), [(AMQP, "as_task_v2"), (Task, "apply_async"), (celery.Celery, "send_task"), (Router, "route")]
)
def test_a_wrapper_around_celerys_own_code_is_called_for_each_row(
    make_app: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    monkeypatch.setattr(owner, name, wrapped(getattr(owner, name)))
    app = make_app()
    app.now = lambda: NOW
    app.finalize()
    assert not (is_plain_app(app) and is_plain_task(app.tasks["proj.touch"]))
    assert check(app, [row(n, task_id=f"id-{n}") for n in range(6)]) == 6


def test_an_app_without_overrides_is_plain(make_app: Callable[..., Any]) -> None:
    """Otherwise the tests above would never use a template."""
    app = make_app(task_routes=[KEYED, {"proj.x": "mail"}])
    assert is_plain_app(app)
    assert is_plain_task(app.tasks["proj.touch"])
    assert is_plain_app(install(PlainCelery("other", broker="memory://", set_as_current=False)))


def test_the_jitter_of_a_route_is_random_for_each_row(make_app: Callable[..., Any], inbox: Inbox) -> None:
    """A jitter of a millisecond is 0 in half of the rows: two equal samples prove nothing for the third row."""
    app = make_app(task_routes={"proj.touch": {"wheel": {"jitter": 0.001}}})
    load(app, inbox, [tuple(row(0).values()) for _ in range(60)])
    assert len({one.eta_ms for one in inbox.messages()}) == 2
