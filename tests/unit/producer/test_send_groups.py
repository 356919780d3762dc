"""The group of a call: its own, its route's, the function's, or that of the running task; errors name what to do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from celery_wheel.broker import shard_of
from celery_wheel.errors import SettingError
from celery_wheel.store.model import Message
from tests.unit.producer.memory_broker import Broker, MakeApp, Send, dispatched_form, run

TENANT = "tenant:42"

#: Calls of ``of``, the function for ``wheel_group``.
asked: list[tuple[Any, ...]] = []


def of(task: str, args: Any, kwargs: Any, options: Any) -> Any:
    asked.append((task, args, kwargs, options.get("queue")))
    return kwargs.get("tenant")


@pytest.fixture(autouse=True)
def _nothing_asked() -> None:
    asked.clear()


def group_of(message: Message) -> str | None:
    """Return the group of a message, which its envelope, its key and its header have."""
    header = json.loads(message.headers).get("wheel_group")
    assert message.group == header
    assert message.group is None or message.key == message.group
    return message.group


@pytest.mark.parametrize(
    ("wheel", "group", "unique"),
    [
        ({"group": TENANT}, TENANT, None),
        ({"group": TENANT, "key": TENANT}, TENANT, None),
        ({"group": TENANT, "key": None, "unique": TENANT}, TENANT, TENANT),
        ({"group": TENANT, "unique": f"{TENANT}:sync"}, TENANT, f"{TENANT}:sync"),
        ({"group": "größe"}, "größe", None),
        ({"group": None}, None, None),
        ({}, None, None),
    ],
)
def test_the_message_has_the_group_of_the_call(send: Send, wheel: Any, group: str | None, unique: str | None) -> None:
    message = send(wheel=wheel)
    assert (group_of(message), message.unique) == (group, unique)


@pytest.mark.parametrize(
    ("wheel", "error", "says"),
    [
        ({"group": 42}, TypeError, "wheel option group must be a text, got 42"),
        ({"group": ""}, ValueError, "wheel option group must be a text of 1 to 512 characters, got ''"),
        (
            {"group": "a\nb"},
            ValueError,
            "wheel option group must be a text without line breaks and control characters, got 'a",
        ),
        ({"group": "x" * 513}, ValueError, "group must be a text of 1 to 512 characters, got 'xxx"),
        ({"group": "a\0"}, ValueError, "group must be without NUL characters"),
        (
            {"group": TENANT, "key": "order:1"},
            ValueError,
            "option key must be left out, since the group 'tenant:42' chooses the shard, got 'order:1'; change it, or",
        ),
        (
            {"group": TENANT, "unique": "sync"},
            ValueError,
            "unique must be the group 'tenant:42', or begin with it and a colon: it chooses the shard; got 'sync'",
        ),
        (
            {"group": TENANT, "unique": f"{TENANT}0"},
            ValueError,
            "got 'tenant:420'; change it, or name no group: wheel=",
        ),
        ({"group": TENANT, "key": "k", "unique": TENANT}, ValueError, "key must be left out"),
    ],
)
@pytest.mark.parametrize("delay", [{"countdown": 60}, {}])
def test_an_invalid_group_is_refused_at_the_call(
    add: Any, broker: Broker, wheel: Any, error: type[Exception], says: str, delay: dict[str, Any]
) -> None:
    with pytest.raises(error, match=says):
        add.apply_async((1, 2), wheel=wheel, **delay)
    assert broker.waiting() == broker.sent() == []


def test_the_group_decides_the_shard(make_app: MakeApp, broker: Broker) -> None:
    add = make_app(wheel_shards=7).tasks["proj.add"]
    wanted = shard_of(TENANT, "", 7)
    for unique in (None, f"{TENANT}:a", f"{TENANT}:b", f"{TENANT}:c"):
        add.apply_async((1, 2), wheel={"group": TENANT, "unique": unique})
    assert [group_of(one) for one in broker.waiting(wanted)] == [TENANT] * 4


def test_a_route_may_name_a_group_and_the_call_goes_before_it(make_app: MakeApp, broker: Broker) -> None:
    app = make_app(task_routes={"proj.add": {"wheel": {"group": "route"}}, "proj.touch": {"wheel": {"key": "k"}}})
    add, touch = app.tasks["proj.add"], app.tasks["proj.touch"]
    for wheel, group in ((None, "route"), ({"group": TENANT}, TENANT), ({"group": None}, None)):
        add.apply_async((1, 2), countdown=60, wheel=wheel)
        assert group_of(broker.one_waiting()) == group
    with pytest.raises(ValueError, match=r"the group 'route' chooses the shard, got 'order:1'"):
        add.apply_async((1, 2), countdown=60, wheel={"key": "order:1"})
    with pytest.raises(ValueError, match=r"the group 'tenant:42' chooses the shard, got 'k'"):
        touch.apply_async(countdown=60, wheel={"group": TENANT})
    assert broker.waiting() == broker.sent() == []


@pytest.mark.parametrize("function", [of, f"{__name__}.of", f"{__name__}:of"])
def test_the_function_names_the_group_of_a_call_without_one(make_app: MakeApp, broker: Broker, function: Any) -> None:
    routes = {"proj.add": {"wheel": {"group": "route"}}}
    app = make_app(wheel_group=function, task_routes=routes)
    touch = app.tasks["proj.touch"]
    touch.apply_async((1,), {"tenant": TENANT}, queue="mail")
    app.send_task("proj.touch", (1,), {"tenant": TENANT}, 60, queue="mail")
    assert [group_of(one) for one in broker.waiting()] == [TENANT] * 2
    touch.apply_async((), {"tenant": None}, countdown=60)
    touch.apply_async()
    assert [group_of(one) for one in broker.waiting()] == [None]
    assert len(broker.sent()) == 1
    assert asked == [("proj.touch", (1,), {"tenant": TENANT}, "mail")] * 2 + [
        ("proj.touch", (), {"tenant": None}, None),
        ("proj.touch", (), {}, None),
    ]
    asked.clear()
    app.tasks["proj.add"].apply_async((1, 2))
    touch.apply_async(wheel={"group": "own"})
    assert [group_of(one) for one in broker.waiting()] == ["route", "own"]
    touch.apply_async((), {"tenant": TENANT}, countdown=60, wheel=False)
    touch.apply_async((), {"tenant": TENANT}, wheel={"group": None})
    app.conf.wheel_enabled = False
    touch.apply_async((), {"tenant": TENANT}, countdown=60)
    assert len(broker.sent()) == 3
    assert asked == []


def fails(*_: Any) -> None:
    raise KeyError("tenant")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (
            fails,
            r"wheel_group must name the group of task proj.touch, or None, but .* raised KeyError\('tenant'\); noth",
        ),
        ("proj.no.module", r"wheel_group must name .* 'proj.no.module' raised ModuleNotFoundError"),
        (f"{__name__}.nobody", "raised AttributeError"),
        (lambda *_: 42, "wheel_group must return a text, or None, got 42 for task proj.touch; nothing was sent"),
        (lambda *_: "", "wheel_group must return a text of 1 to 512 characters, or None, got ''"),
        ("groups", "wheel_group must be a function, its dotted path like 'proj.groups.of', or None, got 'groups'"),
        (42, "wheel_group must be a function, .* got 42"),
    ],
)
@pytest.mark.parametrize("delay", [{"countdown": 60}, {}])
def test_an_error_of_the_function_is_raised_at_the_call(
    make_app: MakeApp, broker: Broker, function: Any, says: str, delay: dict[str, Any]
) -> None:
    app = make_app(wheel_group=function)
    with pytest.raises(SettingError, match=says):
        app.tasks["proj.touch"].apply_async(**delay)
    with pytest.raises(ValueError, match="key must be left out"):
        make_app(wheel_group=of).tasks["proj.touch"].apply_async((), {"tenant": "a"}, wheel={"key": "k"}, **delay)
    assert broker.waiting() == broker.sent() == []


@pytest.fixture
def parent(app: Any) -> Any:
    """A task that sends another with the options that it is given, or retries with them."""

    @app.task(bind=True, name="proj.parent", shared=False)
    def parent(self: Any, retry: bool, options: dict[str, Any]) -> None:
        if retry:
            raise self.retry(**options)
        app.tasks["proj.touch"].apply_async(**options)

    return parent


def within(app: Any, broker: Broker, parent: Any, group: str | None = TENANT, **options: Any) -> list[Message]:
    """Return what a task of a group leaves in the wheel queue; ``retry`` retries it."""
    retry = options.pop("retry", False)
    parent.apply_async((retry, options), countdown=1, wheel={"group": group})
    run(app, dispatched_form(broker.one_waiting()))
    return broker.waiting()


@pytest.mark.parametrize(
    ("options", "group"),
    [
        ({"countdown": 60}, TENANT),
        ({}, TENANT),
        ({"wheel": {"group": "other"}}, "other"),
        ({"countdown": 60, "wheel": {"group": None}}, None),
        ({"countdown": 60, "wheel": {"unique": f"{TENANT}:sync"}}, TENANT),
        ({"countdown": 60, "wheel": {"unique": "sync"}}, None),
        ({"countdown": 60, "wheel": {"key": "order:1"}}, None),
        ({"retry": True, "countdown": 60}, TENANT),
        ({"retry": True, "countdown": 0}, TENANT),
        ({"retry": True, "wheel": {"group": "other"}}, "other"),
        ({"retry": True, "countdown": 60, "wheel": {"group": None}}, None),
    ],
)
def test_a_task_sent_within_a_group_has_the_group(
    app: Any, broker: Broker, parent: Any, options: dict[str, Any], group: str | None
) -> None:
    [message] = within(app, broker, parent, **options)
    assert group_of(message) == group
    assert broker.raw("celery") == []


@pytest.mark.parametrize("wheel", [False, {"group": None}])
@pytest.mark.parametrize("retry", [False, True])
def test_a_call_that_stays_with_celery_carries_no_group(
    app: Any, broker: Broker, parent: Any, wheel: Any, *, retry: bool
) -> None:
    assert within(app, broker, parent, retry=retry, countdown=0, wheel=wheel) == []
    assert "wheel_group" not in broker.one_sent()["headers"]


def test_a_retry_has_the_group_of_its_task_whatever_the_function_says(app: Any, broker: Broker, parent: Any) -> None:
    app.conf.wheel_group = lambda task, args, kwargs, options: kwargs.get("tenant", f"of {task}")
    assert [group_of(one) for one in within(app, broker, parent, retry=True, countdown=60)] == [TENANT]
    assert [group_of(one) for one in within(app, broker, parent, None, retry=True, countdown=60)] == [None]
    assert [group_of(one) for one in within(app, broker, parent, countdown=60)] == ["of proj.touch"]
    assert [group_of(one) for one in within(app, broker, parent, kwargs={"tenant": None})] == [TENANT]


def test_nothing_is_inherited_where_the_setting_says_so(app: Any, broker: Broker, parent: Any) -> None:
    app.conf.wheel_inherit_group = False
    assert [group_of(one) for one in within(app, broker, parent, countdown=60)] == [None]
    assert [group_of(one) for one in within(app, broker, parent, retry=True, countdown=60)] == [None]
    assert within(app, broker, parent) == []


def test_a_task_reads_its_group(app: Any, broker: Broker) -> None:
    @app.task(bind=True, name="proj.reads", shared=False)
    def reads(self: Any) -> None:
        read.append(self.request.wheel_group)

    read: list[Any] = []
    reads.apply_async(wheel={"group": TENANT})
    run(app, dispatched_form(broker.one_waiting()))
    reads.delay()
    run(app, broker.one_sent())
    assert read == [TENANT, None]
