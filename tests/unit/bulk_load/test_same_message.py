"""The message of a row equals, byte for byte, that of ``apply_async`` with the same task id.

A load has some kinds of rows in any order, so that each is rendered as its first row, its second and later ones.
Templates save Celery's own code, which makes two messages of each kind, and ``saferepr``, with the same results.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import celery
import pytest
from celery import Celery as PlainCelery
from celery import Signature, Task, signals
from celery._state import _task_stack
from celery.app.amqp import AMQP
from celery.app.routes import Router
from celery.utils.saferepr import saferepr
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from kombu import Exchange, Queue
from kombu.serialization import register, unregister

from celery_wheel import Celery, install
from celery_wheel.bulk_load import renderer, schedule_many
from celery_wheel.bulk_load.message_template import argsrepr
from celery_wheel.bulk_load.renderer import is_plain_app, is_plain_task
from celery_wheel.bulk_load.row import FIELDS, OPTIONS, RowReader
from celery_wheel.store.model import Message
from tests.unit.bulk_load.conftest import Inbox, load
from tests.unit.producer.memory_broker import Broker, read_message

NOW = datetime(2026, 11, 21, 9, 30, 15, 123457, UTC)
AT = NOW + timedelta(days=3, microseconds=1)
SIGNATURE = {"task": "proj.touch", "args": [], "kwargs": {}, "options": {}, "subtask_type": None, "immutable": True}

#: The first rows of a kind go by Celery's own code, later ones do not.
COUNT = 4

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
    "a group of the wheel": {"wheel": {"group": "tenant:ü"}},
    "no group of the wheel": {"wheel": {"group": None}},
    "one retry policy": {"retry": False, "retry_policy": {"max_retries": 1}},
}


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

#: Settings; ``app``, ``amqp`` and ``base`` are the classes of the app, of its messages and of its tasks, ``task`` the
#: options of the task.
APPS: dict[str, dict[str, Any]] = {
    "plain": {"task_routes": KEYED},
    "protocol 1": {"task_protocol": 1},
    "events": {"task_send_sent_event": True},
    "routes": {"task_routes": {"proj.t*": {"queue": "mail", "priority": 3, "wheel": {"key": "r"}}}},
    "a router": {"task_routes": [lambda name, *_, **__: {"queue": "mail"}]},
    "its own defaults": {"task_default_queue": "d%s", "task_default_priority": 2, "task_default_delivery_mode": 1},
    "compression": {"task_compression": "zlib", "task_serializer": "pickle"},
    "a zone": {"timezone": "Asia/Kathmandu", "enable_utc": False},
    "shards": {"wheel_shards": 5},
    "a topic": {"task_default_exchange": "news", "task_default_exchange_type": "topic"},
    "few levels shown": {"task_repr_maxlevels": 1, "task_argsrepr_maxsize": 30},
    "task: serializer": {"task": {"serializer": "yaml", "compression": "bzip2"}},
    "task: queue": {"task": {"queue": "mail", "priority": 9}},
    "task: expires": {"task": {"expires": 60.5}},
    "task: expires at": {"task": {"expires": AT}},
    "task: limits": {"task": {"time_limit": 9, "soft_time_limit": 3, "ignore_result": True}},
    "task: untyped": {"task": {"typing": False}},
    "task: bound": {"task": {"bind": True}},
    "task: shadow": {"task": {"shadow_name": lambda self, args, kwargs, options: f"shadow of {args[0]}"}},
}
#: The apps of messages of any rows.
OWN_APPS: dict[str, dict[str, Any]] = {
    "plain": APPS["plain"],
    "protocol 1": APPS["protocol 1"],
    "other defaults": {"task_serializer": "own", "task_compression": "gzip", "wheel_shards": 3},
    "a router of arguments": {"task_routes": [routed_by_arguments]},
    "its own apply_async": {"base": OwnTask},
    "its own shadow name": {"base": ShadowTask},
    "its own messages": {"amqp": OwnMessage},
    "its own sender": {"amqp": OwnSender},
    "its own send_task": {"app": OwnApp},
}


@pytest.fixture(autouse=True)
def own_serializer() -> Iterator[None]:
    register("own", lambda body: repr(body).encode("utf-8", "surrogatepass"), None, "application/x-own", "binary")
    yield
    unregister("own")


MakeSubject = Callable[[dict[str, Any]], Any]


@pytest.fixture
def make_subject(make_app: Callable[..., Any]) -> MakeSubject:
    """Make an app of APPS with the tasks whose messages are compared."""

    def make(parts: dict[str, Any]) -> Any:
        parts = {"app": Celery, "accept_content": ["json", "pickle", "yaml", "own"], **parts}
        amqp, base, options = (parts.pop(name, None) for name in ("amqp", "base", "task"))
        if not {"task_default_queue", "task_default_exchange"} & parts.keys():
            parts["task_queues"] = [Queue("mail"), Queue("news", Exchange("news", "topic"), "news.#"), Queue("celery")]
        app = make_app(parts.pop("app"), **parts)
        app.amqp_cls, app.task_cls = amqp or app.amqp_cls, base or app.task_cls
        app.now = lambda: NOW.astimezone(app.timezone)  # relative times must be equal in both ways
        for name in ("proj.to_test", "proj.keyed", "proj.mailed"):

            @app.task(name=name, shared=False, **(options or {}))
            def remind(*args: Any, **kwargs: Any) -> None: ...

        app.finalize()
        return app

    return make


@pytest.fixture(params=OWN_APPS)
def any_app(request: pytest.FixtureRequest, make_subject: MakeSubject) -> Any:
    return make_subject(OWN_APPS[request.param])


def comparable(message: Message) -> dict[str, Any]:
    return {**asdict(message), "envelope_id": None, "created_ms": None}


def options_of(row: dict[str, Any]) -> dict[str, Any]:
    options = {name: value for name, value in row.items() if name not in ("task", "args", "kwargs", "key", "stamps")}
    if "key" in row:
        options["wheel"] = {**options.get("wheel", {}), "key": row["key"]}
    if "stamps" in row:
        options |= {"stamped_headers": [*row["stamps"]], **row["stamps"]}
    return options


def in_form(app: Any, row: dict[str, Any], form: str) -> Any:
    if form == "dict":
        wheel = row.pop("wheel", None) or {}
        return {**row, "task": app.tasks[row["task"]], **{name: wheel.get(name) for name in ("key", "group")}}
    if form == "tuple":
        return tuple(row.get(name) for name in FIELDS)
    task = app.tasks.get(row["task"], row["task"])
    signature = Signature(task, row["args"], row["kwargs"], options_of(row), app=app)
    return dict(signature) if form == "serialised" else signature


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


def check(app: Any, rows: list[dict[str, Any]], form: str = "signature") -> int:
    inbox, wrong = Inbox(app.conf.get("wheel_shards", 1)), set[int]()
    given_rows = [in_form(app, dict(row), form) for row in rows]
    done = schedule_many(app, inbox, given_rows, keep_ids=True, rejected=lambda number, _: wrong.add(number - 1))
    assert done.ids is not None
    ids = dict(zip((number for number in range(len(rows)) if number not in wrong), done.ids, strict=True))
    assert all(rows[number].get("task_id", task_id) == task_id for number, task_id in ids.items())
    taken = [number for number, row in enumerate(rows) if sent(app, row, ids.get(number))]
    assert taken == sorted(ids)
    waiting = [one for shard in range(inbox.shards) for one in Broker().waiting(shard)]
    loads = [commit.get(shard, ()) for shard in range(inbox.shards) for commit in inbox.commits]
    found = [read_message(raw) for load in loads for raw in load]
    assert [comparable(one) for one in found] == [comparable(one) for one in waiting]
    return len(found)


def rows_with(options: dict[str, Any], task: str = "proj.to_test") -> list[dict[str, Any]]:
    rows = []
    for number in range(COUNT):
        values = [number, "it's ü\n", 1.5, None, True, [1, {"x": "y"}], AT, "long " * 30, ""]
        kwargs = {"who": f"user {number}", "what": values[-number]}
        row = {"task": task, "args": (number, *values[number:]), "kwargs": kwargs, "task_id": f"id-{number}", "eta": AT}
        rows.append({**row, **options})
    return rows


@pytest.mark.parametrize("call", CALLS)
def test_the_message_equals_that_of_apply_async(make_subject: MakeSubject, call: str) -> None:
    options = CALLS[call]
    forms = ["signature"]
    forms += ["dict"] if options.keys() <= {*FIELDS, *OPTIONS, "wheel"} else []
    forms += ["tuple"] if options.keys() <= {*FIELDS} else []
    forms += ["serialised"] if call not in ("headers", "a queue as such") else []
    for form in forms:
        assert check(make_subject(APPS["plain"]), rows_with(options), form) == COUNT


SOME_CALLS = ["plain", "countdown", "expires in seconds", "headers", "compressed", "key", "queue", "priority", "links"]


@pytest.mark.filterwarnings("ignore:(?s).*task attribute is deprecated")
@pytest.mark.parametrize(
    ("app_name", "call"),
    # Apps with other default queues and exchanges have no queue named mail.
    [(app, call) for app in APPS for call in SOME_CALLS if call != "queue" or "default_" not in str(APPS[app])],
)
def test_the_message_is_apply_asyncs_with_other_settings(make_subject: MakeSubject, app_name: str, call: str) -> None:
    assert check(make_subject(APPS[app_name]), rows_with(CALLS[call])) == COUNT


@contextmanager
def within(task: Any, **request: Any) -> Iterator[None]:
    _task_stack.push(task)
    task.push_request(called_directly=False, delivery_info={"priority": 6}, **request)
    try:
        yield
    finally:
        task.pop_request()
        _task_stack.pop()


@pytest.mark.parametrize("call", ["plain", "countdown", "links", "retries"])
def test_the_message_equals_that_of_apply_async_within_a_task(make_subject: MakeSubject, call: str) -> None:
    app = make_subject({**APPS["plain"], "task_inherit_parent_priority": True})
    with within(app.tasks["proj.touch"], id="parent", root_id="root", children=[]):
        assert check(app, rows_with(CALLS[call])) == COUNT


def test_the_message_equals_that_of_send_task_where_no_such_task_is_registered(make_subject: MakeSubject) -> None:
    rows = rows_with({"queue": "mail"}, "elsewhere.remind")
    assert check(make_subject(APPS["plain"]), rows, "tuple") == COUNT


def tenant_of(task: str, args: Any, kwargs: Any, options: Any) -> str | None:
    return f"tenant:{args[0]}" if args[0] % 2 else None


#: Settings that name the groups of rows, and the groups of four rows.
GROUPS: dict[str, tuple[dict[str, Any], list[str | None]]] = {
    "by the route": ({"task_routes": {"proj.to*": {"wheel": {"group": "route"}}}}, ["route"] * COUNT),
    "by the function": ({"wheel_group": tenant_of}, [None, "tenant:1", None, "tenant:3"]),
    "by either": (
        {"wheel_group": tenant_of, "task_routes": {"proj.to*": {"wheel": {"group": "route"}}}},
        ["route"] * COUNT,
    ),
    "by the running task": ({}, ["tenant:0"] * COUNT),
}


@pytest.mark.parametrize("by", GROUPS)
@pytest.mark.parametrize("call", ["plain", "headers", "compressed", "links", "a group of the wheel"])
def test_a_row_has_the_group_that_apply_async_gives_it(make_subject: MakeSubject, by: str, call: str) -> None:
    settings_, groups = GROUPS[by]
    app, inbox = make_subject(settings_), Inbox()
    request = {"wheel_group": "tenant:0"} if by == "by the running task" else {}
    rows = rows_with(CALLS[call]) * 2
    with within(app.tasks["proj.touch"], id="parent", root_id="root", children=[], **request):
        assert check(app, rows) == 2 * COUNT
        load(app, inbox, [in_form(app, row, "signature") for row in rows])
    wanted = ["tenant:ü"] * COUNT if "wheel" in CALLS[call] else groups
    assert [one.group for one in inbox.messages()] == wanted * 2


def test_the_group_of_a_row_may_come_from_the_function_at_the_rate_of_a_template(
    make_subject: MakeSubject, sampled: list[Any]
) -> None:
    rows = rows_with({}) * 3
    load(app := make_subject({"wheel_group": tenant_of}), Inbox(), [in_form(app, row, "signature") for row in rows])
    assert len(sampled) == 2 * 2  # with a group and without one


FAST = "plain, countdown, priority, expires at, headers, compressed, pickled, key, a short key, queue, no result"
FAST += ", a group of the wheel"
SAMPLES = {**dict.fromkeys(FAST.split(", "), 2), "link": COUNT, "stamps": COUNT, "expires in text": COUNT}


@pytest.mark.parametrize("call", SAMPLES)
def test_celerys_code_makes_two_messages_of_a_kind(make_subject: MakeSubject, sampled: list[Any], call: str) -> None:
    """Otherwise the comparisons above would compare Celery's code with itself."""
    app = make_subject(APPS["plain"])
    load(app, Inbox(), [in_form(app, row, "signature") for row in rows_with(CALLS[call])])
    assert len(sampled) == SAMPLES[call]


def test_rows_without_an_id_get_one_that_sorts(app: Any, inbox: Inbox) -> None:
    done = load(app, inbox, [("proj.touch", (), {}, AT) for _ in range(50)], keep_ids=True)
    messages = inbox.messages()
    assert done.ids == [one.task_id for one in messages] == sorted({one.task_id for one in messages})
    assert len({one.envelope_id for one in messages}) == 50


def test_the_same_task_id_twice_makes_two_messages(app: Any, inbox: Inbox) -> None:
    load(app, inbox, [("proj.touch", (), {}, AT, None, None, None, None, "same")] * 5)
    assert len({one.envelope_id for one in inbox.messages()}) == 5


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


@pytest.mark.slow
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


ATOMS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.binary(max_size=5))
DEEP = st.recursive(ATOMS, lambda inner: st.lists(inner) | st.dictionaries(ATOMS, inner) | st.tuples(inner, inner))


class Odd(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return "odd"


@pytest.mark.slow
@given(
    value=st.one_of(st.lists(DEEP), st.tuples(), st.tuples(DEEP), st.tuples(DEEP, DEEP), st.dictionaries(ATOMS, DEEP)),
    max_length=st.integers(0, 60) | st.just(1024),
    max_levels=st.integers(0, 4),
)
@example(value=("it's",), max_length=99, max_levels=3)
@example(value=[Odd("x"), 2**80, float("nan"), '\n\\"\0ü'], max_length=99, max_levels=3)
@example(value={1: "a", None: True, "x" * 50: 1e300}, max_length=99, max_levels=3)
def test_the_text_equals_that_of_saferepr(value: Any, max_length: int, max_levels: int) -> None:
    assert argsrepr(value, max_length, max_levels) == saferepr(value, max_length, maxlevels=max_levels)


@pytest.mark.parametrize("length", range(15, 25))
def test_the_text_ends_where_that_of_saferepr_ends(length: int) -> None:
    value = ("x" * 8, "y" * 4)
    assert argsrepr(value, length, 3) == saferepr(value, length, maxlevels=3)


LATER = datetime(2099, 1, 1, tzinfo=UTC)


def in_turns(tasks: int, queues: int, rows: int) -> Iterator[Any]:
    """Generate rows: each kind once before any kind a second time."""
    for number in range(rows):
        task, queue = number % tasks, number // tasks % queues
        yield f"proj.task_{task}", (number,), {}, LATER, f"queue-{queue}"


@pytest.mark.parametrize(("tasks", "queues"), [(1, 1), (50, 10)])
def test_two_messages_of_each_kind_are_samples(app: Any, sampled: list[Any], tasks: int, queues: int) -> None:
    kinds = tasks * queues
    assert renderer.MAX_KINDS >= 5_000, "an installation's kinds are not forgotten"
    inbox = Inbox()
    load(app, inbox, in_turns(tasks, queues, 3 * kinds))
    assert len(inbox.raw) == 3 * kinds
    assert len(sampled) == 2 * kinds


def test_the_least_recently_used_kind_is_forgotten(
    app: Any, inbox: Inbox, sampled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renderer, "MAX_KINDS", 3)

    def row(queue: str) -> Any:
        return "proj.touch", (), {}, LATER, queue

    load(app, inbox, map(row, "aabbcc" + "a" + "dd" + "acd" + "b"))
    assert "".join(call.options["queue"] for call in sampled) == "aabbccdd" + "b"


def test_a_load_of_rows_of_all_kinds_keeps_few(app: Any, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer, "MAX_KINDS", 10)
    made = renderer.Renderer(app, 1, 2**20)
    read = RowReader(app).read
    for number in range(50):
        made.render(read(("proj.touch", (), {}, LATER, f"queue-{number}")))
    assert len(made._templates) == 10
    made.close()


def test_an_app_that_was_used_before_has_templates_too(app: Any, sampled: list[Any]) -> None:
    app.send_task("proj.touch", countdown=60)
    for loads in (1, 2):
        load(app, Inbox(), in_turns(1, 1, 5))
        assert len(sampled) == 2 * loads
