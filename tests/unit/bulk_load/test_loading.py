"""A load as a whole: groups, wrong rows, failures in the middle, signals, memory."""

import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import celery
import pytest
from celery import Celery as Plain
from celery import chain, chord, group, signals
from kombu.exceptions import OperationalError

from celery_wheel import bulk_load as many
from celery_wheel.bulk_load import ScheduleResult, schedule_many
from celery_wheel.bulk_load.message_template import Sampler
from celery_wheel.errors import SettingError, StoreError
from tests.unit.bulk_load.conftest import Inbox, load
from tests.unit.producer.memory_broker import Broker

AT = datetime(2099, 1, 1, tzinfo=UTC)


def rows(count: int) -> Iterator[Any]:
    return (("proj.touch", (number,), {}, AT) for number in range(count))


def numbers(inbox: Inbox) -> list[int]:
    return [int(one.body.split(b"]")[0][2:]) for one in inbox.messages()]


def test_a_group_is_a_commit_and_progress_comes_after_it(app: Any, inbox: Inbox) -> None:
    seen: list[tuple[int, int, int]] = []

    def progress(done: ScheduleResult) -> None:
        seen.append((done.rows, done.count, len(inbox.commits)))

    done = load(app, inbox, rows(25), group=10, progress=progress)
    assert seen == [(10, 10, 1), (20, 20, 2), (25, 25, 3)]
    assert (done.rows, done.count, done.rejected_count, done.ids) == (25, 25, 0, None)
    assert numbers(inbox) == list(range(25))


def test_a_load_without_rows_commits_nothing(app: Any, inbox: Inbox) -> None:
    done = load(app, inbox, [], progress=lambda _: pytest.fail("there is none"))
    assert (done.rows, done.count, inbox.commits) == (0, 0, [])


def test_large_messages_make_small_groups(app: Any, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "GROUP_BYTES", 10_000)
    load(app, inbox, [("proj.touch", ("x" * 3_000,), {}, AT)] * 9)
    assert [len(commit[0]) for commit in inbox.commits] == [2, 2, 2, 2, 1]


def test_messages_are_packed_in_order_large_ones_apart(app: Any, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "PACK_COUNT", 4)
    monkeypatch.setattr(many, "PACK_BYTES", 12_000)
    sizes = [10] * 9 + [20_000] + [10] * 2 + [5_000] * 3
    load(app, inbox, [("proj.touch", (n, "x" * size), {}, AT) for n, size in enumerate(sizes)])
    assert [int(one.body.split(b",")[0][2:]) for one in inbox.messages()] == list(range(len(sizes)))
    assert inbox.items == [4, 4, 1, 1, 3, 1, 1]


def test_each_row_goes_to_its_shard_in_one_commit(app: Any) -> None:
    inbox = Inbox(shards=4)
    load(app, inbox, [("proj.touch", (n,), {}, AT, None, f"key-{n % 7}") for n in range(70)])
    assert len(inbox.commits) == 1
    assert len(inbox.commits[0]) > 1
    assert len(inbox.messages()) == 70, "and each is in the shard of its key"


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(app: Any) -> None:
    class Forgetful(Inbox):
        def put_inboxes(self, items: Any) -> None: ...

    def peak(count: int) -> int:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        mixed = (one for n in range(count // 2) for one in (("proj.touch", (n,), {}, AT), ("", (n,), {}, AT)))
        assert schedule_many(app, Forgetful(), mixed, group=100).rejected_count == count // 2
        return tracemalloc.get_traced_memory()[1] - before

    tracemalloc.start()
    try:
        peak(5_000)  # what is kept for good is there now
        assert peak(5_000) < 1.4 * peak(2_200)
    finally:
        tracemalloc.stop()


def a_task_elsewhere() -> Any:
    def touch() -> None: ...

    other = Plain("other", set_as_current=False)
    task = other.task(name="proj.touch", shared=False)(touch)
    other.finalize()
    return other.tasks[task.name]


NOTHING = {"args": (), "kwargs": {}, "eta": AT}
WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no row": (lambda _: "proj.touch", "a row must be a signature, a dict or a tuple, got str"),
    "too short": (lambda _: ("proj.touch", (), {}), "a row must have 4 to 11 values"),
    "too long": (lambda _: ("proj.touch",) * 12, "a row must have 4 to 11 values"),
    "unknown field": (lambda _: {"task": "proj.touch", "prority": 1, **NOTHING}, "got prority"),
    "no task": (lambda _: NOTHING, "task must be a task or its name, got None"),
    "no eta": (lambda _: ("proj.touch", (), {}, None), "must have eta or countdown"),
    "an eta of no time": (lambda _: ("proj.touch", (), {}, "soon"), "eta must be a datetime, or a text in ISO 8601"),
    "an eta that is a float": (lambda _: ("proj.touch", (), {}, 1.5), "eta must be a datetime, or a text"),
    "an eta in seconds": (lambda _: ("proj.touch", (), {}, 1_800_000_000), "eta must be Unix milliseconds"),
    "an eta too late": (lambda _: ("proj.touch", (), {}, datetime.max), "before the year 9999"),  # noqa: DTZ901
    "an eta before 1970": (lambda _: ("proj.touch", (), {}, "1969-12-31"), "eta must not be before 1970"),
    "countdown of nan": (lambda _: {"task": "proj.touch", "countdown": float("nan")}, "countdown must be finite"),
    "countdown of text": (lambda _: {"task": "proj.touch", "countdown": "1"}, "countdown must be a number"),
    "missing argument": (lambda app: (app.tasks["proj.add"], (1,), {}, AT), "missing 1 required positional argument"),
    "args of text": (lambda _: ("elsewhere", "abc", {}, AT), "task args must be a list or tuple"),
    "kwargs of a list": (lambda _: ("elsewhere", (), [1], AT), "task keyword arguments must be a mapping"),
    "args of no JSON": (lambda _: ("proj.touch", (object(),), {}, AT), "is not JSON serializable"),
    "an id that is none": (lambda _: ("proj.touch", (), {}, AT, *[None] * 4, 7), "task_id must be a text"),
    "an id too long": (lambda _: ("proj.touch", (), {}, AT, *[None] * 4, "x" * 600), "task_id must be a text of 1"),
    "an id with NUL": (lambda _: ("proj.touch", (), {}, AT, *[None] * 4, "\0"), "must be without NUL"),
    "a key too long": (lambda _: ("proj.touch", (), {}, AT, None, "k" * 600), "wheel option key must be"),
    "expires of text": (lambda _: ("proj.touch", (), {}, AT, None, None, None, "soon"), "invalid literal"),
    "too large": (lambda _: ("proj.touch", ("x" * 9 * 2**20,), {}, AT), "wheel_max_message_bytes"),
    "a group": (lambda app: group(app.tasks["proj.touch"].s()), "that of one task, got a group"),
    "a chain": (lambda app: chain(*[app.tasks["proj.touch"].si()] * 2), "that of one task, got a chain"),
    "a chord": (lambda app: chord([app.tasks["proj.touch"].s()], app.tasks["proj.touch"].s()), "got a chord"),
    "a dict of a chain": (
        lambda app: dict(chain(*[app.tasks["proj.touch"].si()] * 2)),
        "that of one task, got a chain",
    ),
    "native": (
        lambda app: app.tasks["proj.touch"].signature(eta=AT, wheel=False),
        "cannot schedule a task with wheel=False",
    ),
    "another broker": (
        lambda app: app.tasks["proj.touch"].signature(eta=AT, connection=app),
        "must not have the option connection",
    ),
    "another app": (
        lambda _: (a_task_elsewhere(), (), {}, AT),
        "must be one of this app",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_row_is_reported_with_its_number_and_the_good_ones_are_kept(app: Any, inbox: Inbox, wrong: str) -> None:
    """The row is the first of its kind, or comes after the kind's template is proven."""
    row, reason = WRONG[wrong]
    told: list[tuple[int, str]] = []
    given = [row(app), *rows(5), row(app), ("proj.touch", (5,), {}, AT)]
    done = schedule_many(app, inbox, given, group=3, rejected=lambda *one: told.append(one))
    assert done.rejected == told
    assert [number for number, _ in told] == [1, 7]
    for _, said in told:
        assert pytest.raises(ValueError, match=reason).matches(ValueError(said)), said
    assert (done.rows, done.count, done.rejected_count, numbers(inbox)) == (8, 6, 2, list(range(6)))


def test_reasons_beyond_the_kept_are_counted_and_told(app: Any, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "KEPT", 3)
    told: list[int] = []
    done = schedule_many(app, inbox, [None] * 10, group=2, rejected=lambda number, _: told.append(number))
    assert (done.rejected_count, [one.number for one in done.rejected]) == (10, [1, 2, 3])
    assert told == list(range(1, 11))


def test_a_row_whose_route_leaves_it_to_celery_is_rejected(make_app: Callable[..., Any], inbox: Inbox) -> None:
    done = schedule_many(make_app(task_routes={"proj.touch": {"wheel": False}}), inbox, rows(3))
    assert [reason.partition(":")[0] for _, reason in done.rejected] == ["the message is not for the wheel"] * 3


@pytest.mark.parametrize("eta", [datetime(2001, 1, 1, tzinfo=UTC), 1_000_000_000_000])
def test_a_row_with_a_past_eta_passes_through_the_wheel(app: Any, broker: Broker, inbox: Inbox, eta: Any) -> None:
    load(app, inbox, [("proj.touch", (n,), {}, eta) for n in range(4)])
    assert len(inbox.messages()) == 4
    assert broker.sent() == []


@pytest.mark.parametrize("countdown", [0, -5, 0.0])
def test_a_countdown_of_zero_is_now(app: Any, broker: Broker, inbox: Inbox, countdown: float) -> None:
    before_ms = (datetime.now(UTC) + timedelta(seconds=countdown)).timestamp() * 1000
    load(app, inbox, [{"task": "proj.touch", "countdown": countdown}] * 4)
    assert all(before_ms <= one.eta_ms <= before_ms + 60_000 for one in inbox.messages())
    assert len(inbox.messages()) == 4
    assert broker.sent() == []


def said_of(error: BaseException) -> str:
    return "\n".join(error.__notes__)


def test_after_a_failure_of_the_source_the_groups_before_stay_and_are_counted(app: Any, inbox: Inbox) -> None:
    def failing() -> Iterator[Any]:
        yield from rows(7)
        yield None
        yield from rows(5)
        raise KeyError("the file ended")

    with pytest.raises(KeyError, match="the file ended") as caught:
        schedule_many(app, inbox, failing(), group=5)
    done = caught.value.scheduled  # type: ignore[attr-defined]
    assert (done.rows, done.count, done.rejected_count) == (10, 9, 1)
    assert len(inbox.messages()) == 9
    assert said_of(caught.value) == (
        "schedule_many: 9 tasks, of the first 10 rows, are in the store, and none of the rows after them"
    )


def test_continuing_after_a_failure_skips_the_stored_rows(app: Any, inbox: Inbox) -> None:
    given = list(rows(23))

    def failing() -> Iterator[Any]:
        yield from given[:14]
        raise OSError

    with pytest.raises(OSError) as caught:  # noqa: PT011 - any
        schedule_many(app, inbox, failing(), group=5)
    load(app, inbox, given[caught.value.scheduled.rows :], group=5)  # type: ignore[attr-defined]
    assert numbers(inbox) == list(range(23))


@pytest.mark.parametrize("error", [StoreError("it went away"), KeyboardInterrupt()])
def test_after_a_failure_of_the_store_the_error_names_the_durable_rows(app: Any, error: Any) -> None:
    inbox = Inbox(fails_at=3, error=error)
    with pytest.raises(type(error)) as caught:
        schedule_many(app, inbox, rows(100), group=10)
    assert (caught.value.scheduled.rows, len(inbox.messages())) == (20, 20)
    assert said_of(caught.value) == (
        "schedule_many: 20 tasks, of the first 20 rows, are in the store; either all or none of the 10 tasks "
        "after them are in the store too"
    )


def test_after_a_failure_of_a_callback_its_group_is_stored(app: Any, inbox: Inbox) -> None:
    def progress(done: ScheduleResult) -> None:
        if done.rows == 20:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        schedule_many(app, inbox, rows(100), group=10, progress=progress)
    assert (caught.value.scheduled.rows, len(inbox.messages())) == (20, 20)  # type: ignore[attr-defined]


def test_a_needed_broker_that_is_silent_ends_the_load(app: Any, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are not at fault, and each would wait for the broker; task-sent events are such a case."""

    def send(self: Sampler, call: Any) -> Any:
        raise OperationalError("no broker")

    monkeypatch.setattr(Sampler, "send", send)
    with pytest.raises(OperationalError, match="no broker"):
        schedule_many(app, inbox, rows(3))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"wheel_enabled": False}, "wheel_enabled must be True"),
        ({"task_always_eager": True}, "task_always_eager must be False"),
        ({"broker_url": "filesystem://"}, "broker_url must use a transport that the wheel supports"),
        ({"broker_url": "redis://a//;redis://b//"}, "broker_url must name one Redis server"),
    ],
)
def test_a_load_is_refused_where_no_task_may_wait(
    make_app: Callable[..., Any], inbox: Inbox, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingError, match=said):
        schedule_many(make_app(**settings), inbox, rows(3))
    assert inbox.commits == []


def test_a_load_is_refused_for_an_app_without_the_wheel(inbox: Inbox) -> None:
    with pytest.raises(SettingError, match="must be a celery_wheel"):
        schedule_many(Plain("plain", broker="memory://", set_as_current=False), inbox, rows(3))


LOSES_RECEIVERS = "Celery before 5.7 no longer sees new receivers once it has removed a dead one"


@pytest.mark.parametrize(
    "connected_after", [0, pytest.param(6, marks=pytest.mark.skipif(celery.VERSION < (5, 7), reason=LOSES_RECEIVERS))]
)
def test_signals_are_sent_for_each_row_and_changes_count(app: Any, inbox: Inbox, connected_after: int) -> None:
    seen: list[tuple[str, str]] = []

    def before(headers: Any, routing_key: str, **_: Any) -> None:
        headers["tenant"] = headers["id"]
        seen.append(("before", routing_key))

    def after(headers: Any, routing_key: str, **_: Any) -> None:
        seen.append(("after", routing_key))

    def given() -> Iterator[Any]:
        for number, row in enumerate(rows(10)):
            if number == connected_after:
                signals.before_task_publish.connect(before)
                signals.after_task_publish.connect(after)
            yield row

    try:
        load(app, inbox, given())
    finally:
        signals.before_task_publish.disconnect(before)
        signals.after_task_publish.disconnect(after)
    count = 10 - connected_after
    assert seen == [("before", "celery"), ("after", "celery")] * count
    marked = [one for one in inbox.messages() if f'"tenant": "{one.task_id}"'.encode() in one.headers]
    assert len(marked) == count


def test_a_receiver_that_removes_the_eta_causes_a_rejection(app: Any, broker: Broker, inbox: Inbox) -> None:
    def before(headers: Any, **_: Any) -> None:
        headers["eta"] = None

    signals.before_task_publish.connect(before)
    try:
        done = schedule_many(app, inbox, rows(3))
    finally:
        signals.before_task_publish.disconnect(before)
    assert (done.count, done.rejected_count, broker.sent()) == (0, 3, [])


def test_task_sent_events_go_to_the_broker(make_app: Callable[..., Any], broker: Broker, inbox: Inbox) -> None:
    app = make_app(task_send_sent_event=True)
    with app.connection_for_write() as connection:
        queue = app.events.Receiver(connection).queue(connection.default_channel)
        queue.declare()
        load(app, inbox, rows(5))
        events = []
        while (message := queue.get(no_ack=True)) is not None:
            events.append(message.payload)
    assert [event["type"] for event in events] == ["task-sent"] * 5
    assert [event["uuid"] for event in events] == [one.task_id for one in inbox.messages()]
    assert {event["routing_key"] for event in events} == {"celery"}


def test_without_receivers_the_broker_is_not_needed(make_app: Callable[..., Any], inbox: Inbox) -> None:
    """The broker may be down: nothing listens on port 1."""
    load(make_app(broker_url="redis://127.0.0.1:1/0", task_publish_retry=False), inbox, rows(5))
    assert len(inbox.messages()) == 5
