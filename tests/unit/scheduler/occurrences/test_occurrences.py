"""The message of an occurrence is the one that ``apply_async`` would send, and the wheel queue's reader would read."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from celery import signals
from kombu.exceptions import OperationalError
from kombu.transport.memory import Channel

from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.bulk_load.message_template import Sampler
from celery_wheel.engine.recurring.occurrence import Occurrence
from celery_wheel.errors import BrokerError, DestinationError, RecurrenceError
from celery_wheel.recurring.definition import read_definition, to_text
from celery_wheel.scheduler import occurrences as renderer_module
from celery_wheel.scheduler.occurrences import DeclaredQueues, ScheduleRenderer
from celery_wheel.store.model import Message
from celery_wheel.store.schedule_model import OCCURRENCE, Schedule
from tests.unit.producer.conftest import app, broker, make_app
from tests.unit.producer.memory_broker import Broker, dispatched_form

__all__ = ["app", "broker", "make_app"]

AT_MS = 1_793_664_000_000
UUID = "6f1c2d3e-0000-4000-8000-000000000001"
AT = datetime.fromtimestamp(AT_MS / 1_000, UTC)


class Rendering:
    def __init__(self, app: Any, apply_entry: Any = None, **definition: Any) -> None:
        spec = {"kind": "interval", "every_ms": 1_000}
        text = to_text({"recurrence": {"kind": "recurrence", "spec": spec}, "task": "proj.touch", **definition})
        self.schedule = Schedule(1793, "report", text, "api", 1, AT_MS)
        self.definition = read_definition(text)
        self.renderer = ScheduleRenderer(app, 8 * 2**20, QueuedMessageReader().decode, apply_entry)

    def __call__(self, instant_ms: int = AT_MS, due_ms: int | None = None, id_: str = UUID) -> Message:
        occurrence = Occurrence(0, instant_ms, instant_ms if due_ms is None else due_ms, AT_MS - 1_000, id_)
        return self.renderer.render(self.schedule, self.definition, occurrence)

    def all_three(self) -> list[Message]:
        """Return two samples, and the message by the template."""
        return [self(id_=UUID[:-1] + str(n)) for n in range(3)]


def body(message: Message) -> Any:
    return json.loads(message.body)


def headers(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(message.headers)
    return found


def without_ids(message: dict[str, Any]) -> str:
    """Return a message as text, without ids, times and the header of an occurrence."""
    sent = json.loads(json.dumps(message))
    for name in ("id", "root_id", OCCURRENCE, "origin"):
        sent["headers"].pop(name, None)
    for name in ("correlation_id", "delivery_info", "delivery_tag", "body_encoding", "priority", "reply_to"):
        sent["properties"].pop(name, None)
    return json.dumps(sent, sort_keys=True)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"queue": "mail", "priority": 7},
        {"headers": {"tenant": "acme"}, "ignore_result": True, "shadow": "nightly"},
        {"serializer": "json", "compression": "zlib", "time_limit": 5, "soft_time_limit": 3},
        {"link": {"args": [1], "task": "proj.add"}},
    ],
)
def test_the_message_is_the_one_that_apply_async_sends(app: Any, broker: Broker, options: dict[str, Any]) -> None:
    found = Rendering(app, args=[1, "ü"], kwargs={"a": None}, options=options).all_three()
    app.tasks["proj.touch"].apply_async([1, "ü"], {"a": None}, **options)
    queue = options.get("queue", "celery")
    expected = without_ids(broker.one_sent(queue))
    assert {without_ids(dispatched_form(one)) for one in found} == {expected}
    assert [(one.queue, one.priority) for one in found] == [(queue, options.get("priority"))] * 3


def test_a_task_learns_its_instant(app: Any) -> None:
    for one in Rendering(app, overlap="skip").all_three():
        assert headers(one)[OCCURRENCE] == {
            "schedule": "report",
            "id": 1793,
            "shard": 0,
            "scheduled_for": AT_MS,
            "previous": AT_MS - 1_000,
        }


def test_an_occurrence_that_is_rendered_again_has_the_same_task_id(app: Any) -> None:
    first, again, by_template = (Rendering(app)(id_=UUID) for _ in range(3))
    assert first.task_id == again.task_id == by_template.task_id == headers(first)["id"]
    assert len({first.task_id, Rendering(app)(id_=UUID[:-1] + "7").task_id, UUID}) == 3


def test_a_run_expires_so_long_after_it_is_due(app: Any) -> None:
    render = Rendering(app, options={"expires": 90.5})
    for one in (render(due_ms=AT_MS + 30_000) for _ in range(3)):
        assert one.expires_ms == AT_MS + 120_500
        assert datetime.fromisoformat(headers(one)["expires"]) == AT + timedelta(seconds=120.5)
    app.tasks["proj.touch"].expires = 10
    assert Rendering(app)().expires_ms == AT_MS + 10_000
    assert Rendering(app, options={"expires": 20})().expires_ms == AT_MS + 20_000


def test_a_schedule_for_a_queue_that_the_list_does_not_name_says_so(make_app: Any) -> None:
    """The engine tries again for an hour and shows the error as the schedule's note."""
    app = make_app(wheel_destinations=["mail"])
    with pytest.raises(DestinationError, match="wheel_destinations does not name its queue, 'celery'"):
        Rendering(app)()
    assert Rendering(app, options={"queue": "mail"})().queue == "mail"


def test_misfire_and_key_are_the_schedules_before_those_of_the_route(make_app: Any) -> None:
    app = make_app(task_routes={"proj.touch": {"queue": "mail", "wheel": {"misfire": "skip", "key": "acme"}}})
    assert [(one.misfire_ms, one.key, one.queue) for one in Rendering(app).all_three()] == [
        (60_000, "acme", "mail")
    ] * 3
    own = Rendering(app, options={"wheel": {"misfire": 5, "key": "other"}, "queue": "reports"}).all_three()
    assert [(one.misfire_ms, one.key, one.queue) for one in own] == [(5_000, "other", "reports")] * 3


def test_the_group_of_a_run_is_the_schedules_or_the_one_of_the_function(make_app: Any) -> None:
    app = make_app(wheel_group=lambda task, args, kwargs, options: kwargs.get("tenant"))
    for options, group in (({"wheel": {"group": "own"}}, "own"), ({}, "tenant:1"), ({"wheel": {"group": None}}, None)):
        found = Rendering(app, kwargs={"tenant": "tenant:1"}, options=options).all_three()
        assert [(one.group, one.key, headers(one).get("wheel_group")) for one in found] == [(group, group, group)] * 3


def test_a_route_with_wheel_false_is_a_route_like_any_other(make_app: Any) -> None:
    app = make_app(task_routes={"proj.touch": {"queue": "mail", "wheel": False}})
    assert [one.queue for one in Rendering(app).all_three()] == ["mail"] * 3


def test_a_task_of_another_project_is_sent_by_its_name(app: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = Rendering(app, task="other.report", args=[1]).all_three()
    assert [(one.task, body(one)[0]) for one in found] == [("other.report", [1])] * 3
    assert [record.getMessage().startswith("task other.report is not registered") for record in caplog.records] == [
        True
    ]


@pytest.mark.parametrize(
    ("definition", "settings", "reason"),
    [
        ({"task": "proj.add", "args": [1]}, {}, "missing 1 required positional argument"),
        ({"options": {"queue": "none"}}, {"task_create_missing_queues": False, "task_queues": []}, "none"),
        ({"options": {"serializer": "no such"}}, {}, "no such"),
        ({"args": ["x" * 9_000_000]}, {}, "at most 8,388,608 bytes"),
        ({"options": {"queue": "wheel.0"}}, {}, "the wheel's own"),
        ({}, {"task_always_eager": True}, "task_always_eager must be False"),
    ],
)
def test_a_call_that_apply_async_would_not_send_raises_the_reason(
    make_app: Any, definition: dict[str, Any], settings: dict[str, Any], reason: str
) -> None:
    render = Rendering(make_app(**settings), **definition)
    for _ in range(3):
        with pytest.raises(Exception, match=reason) as caught:
            render()
        assert not isinstance(caught.value, BrokerError)


def test_a_result_backend_that_does_not_answer_is_no_fault_of_the_schedule(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    render = Rendering(app)
    monkeypatch.setattr(Sampler, "send", mock.Mock(side_effect=ConnectionError("the backend is away")))
    with pytest.raises(BrokerError, match="the backend is away"):
        render()


def test_a_broker_that_does_not_answer_is_no_fault_of_the_schedule(app: Any) -> None:
    render = Rendering(app)
    render.renderer._queues = DeclaredQueues(app)
    away = mock.patch.object(app, "connection_for_write", side_effect=OperationalError("no answer"))
    with away, pytest.raises(BrokerError, match="no answer"):
        render()
    assert headers(render())["task"] == "proj.touch"
    assert "celery" in Channel.queues


@pytest.mark.parametrize("made", [0, 1, 5])
def test_a_queue_that_was_lost_is_declared_again(app: Any, made: int) -> None:
    render = Rendering(app, options={"queue": "mail"})
    render.renderer._queues = DeclaredQueues(app)
    for _ in range(made):
        render()
    Channel.queues.clear()
    render()
    assert ("mail" in Channel.queues) is (made == 0), "a queue that is not known to be lost costs no connection"
    render.renderer.queue_lost("mail")
    render()
    assert "mail" in Channel.queues


def test_receivers_of_signals_change_each_message(app: Any) -> None:
    def receiver(headers: dict[str, Any] | None = None, **rest: Any) -> None:
        assert headers is not None
        headers["trace"] = headers["id"]

    signals.before_task_publish.connect(receiver)
    try:
        for one in Rendering(app).all_three():
            assert headers(one)["trace"] == one.task_id
    finally:
        signals.before_task_publish.disconnect(receiver)


def test_a_transactional_setting_is_not_for_schedules(make_app: Any) -> None:
    app = make_app(wheel_transactional=True, wheel_store="sqlite:///no/such/file")
    assert len(Rendering(app).all_three()) == 3


@dataclass
class Publishing:
    """Publishes the task of an occurrence so many times; -1: it watches no schedule."""

    app: Any
    options: dict[str, Any] = field(default_factory=dict)
    times: int = 1

    def watches(self, stored: Schedule) -> bool:
        return self.times >= 0

    def __call__(self, stored: Schedule, definition: Any, producer: Any) -> None:
        for _ in range(self.times):
            self.app.tasks["proj.touch"].apply_async(
                (1,), producer=producer, task_id=producer.task_id, headers={"trace": stored.name}, **self.options
            )


@pytest.mark.parametrize("options", [{}, {"countdown": 5}, {"queue": "mail"}, {"expires": 30}])
def test_a_changed_apply_entry_makes_the_message(app: Any, broker: Broker, options: dict[str, Any]) -> None:
    render = Rendering(app, Publishing(app, options))
    one, again = render(), render()
    assert one.task_id == again.task_id
    assert headers(one)["trace"] == "report"
    assert headers(one)[OCCURRENCE]["scheduled_for"] == AT_MS
    assert (one.queue, headers(one)["eta"]) == (options.get("queue", "celery"), None)
    assert body(one)[0] == [1]
    assert not broker.raw("celery")
    assert not broker.raw("wheel.0")


def test_an_unknown_task_is_in_the_log_too_where_an_apply_entry_makes_the_message(
    app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    render = Rendering(app, Publishing(app), task="other.report")
    render()
    render()
    assert [vars(line)["task"] for line in caplog.records] == ["other.report"]


def test_a_schedule_that_it_does_not_watch_is_left_to_the_template(app: Any) -> None:
    assert "trace" not in headers(Rendering(app, Publishing(app, times=-1))())


@pytest.mark.parametrize("times", [0, 2])
def test_an_apply_entry_must_publish_one_task(app: Any, times: int) -> None:
    with pytest.raises(RecurrenceError, match=f"must publish one task by its producer, got {times}"):
        Rendering(app, Publishing(app, times=times))()


def test_with_the_event_task_sent_the_event_is_sent(make_app: Any, broker: Broker) -> None:
    app = make_app(task_send_sent_event=True)
    assert [one.queue for one in Rendering(app).all_three()] == ["celery"] * 3
    assert Rendering(app, Publishing(app))().queue == "celery"


def test_a_file_that_a_router_does_not_find_is_no_outage(make_app: Any, tmp_path: Path) -> None:
    def router(*_: Any, **__: Any) -> None:
        (tmp_path / "none.toml").read_text()

    with pytest.raises(FileNotFoundError):
        Rendering(make_app(task_routes=[router]))()


ARGUMENTS: list[Any] = [
    [],
    ["%s %d %% %", 'a"b\\c\n\0', "ü\U0001f600", None, 1.5e300, True],
    [{"nested": [["deep"], {}]}, "x" * 3_000],
    ["}, 1]", '@0 "', ", {"],
]


def fields(message: Message) -> dict[str, Any]:
    return {name: getattr(message, name) for name in Message.__slots__ if name != "created_ms"}


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes renderers read each message from its bytes."""
    return lambda: monkeypatch.setattr(renderer_module, "stored_form", lambda *_: None)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"expires": 60, "headers": {"tenant": 'a"%s', "n": {"m": [1.0]}}, "priority": 3},
        {"wheel": {"key": 'order "%s"', "misfire": 5}, "queue": "mail %s"},
        {"wheel": {"group": 'tenant "%s"'}},
        {"exchange": "news", "routing_key": "a.b", "reply_to": "r", "shadow": "100 %"},
        {"compression": "zlib"},
        {"serializer": "yaml"},
    ],
)
@pytest.mark.parametrize("keep_eta", [False, True])
def test_the_message_is_the_one_that_the_reader_reads(
    app: Any, read_only: Callable[[], None], options: dict[str, Any], keep_eta: bool
) -> None:
    def rendered() -> list[dict[str, Any]]:
        found = []
        for arguments in [[0], [0], *ARGUMENTS]:
            render = Rendering(app, args=arguments, kwargs={"a": arguments}, options=options)
            render.renderer = shared
            found.append(fields(render(AT_MS + len(found), id_=UUID[:-1] + str(len(found)))))
        return found

    def new_renderer() -> Any:
        return renderer_module.ScheduleRenderer(app, 8 * 2**20, QueuedMessageReader(keep_eta=keep_eta).decode)

    shared = new_renderer()
    by_form = rendered()
    forms = list(shared._forms.values())
    assert [form is not None for form in forms] == [not {"compression", "serializer"} & set(options)]
    read_only()
    shared = new_renderer()
    assert rendered() == by_form
    assert list(shared._forms.values()) == [None]
