"""``wheel=`` of a call, from each source of its options, retries and canvas among them; a wrong setting raises."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from celery import chain, chord, group
from freezegun import freeze_time

from celery_wheel.control import Wheel
from celery_wheel.errors import SettingError
from celery_wheel.store.model import Message
from tests.unit.producer.memory_broker import Broker, MakeApp, Send, dispatched_form, run


def stays_with_celery(broker: Broker) -> None:
    """Assert that the broker has one message, of Celery alone, whose worker waits for its eta."""
    assert not broker.waiting()
    (raw,) = broker.raw("celery")
    assert b"wheel" not in raw
    assert b'"eta": "2' in raw


def test_a_wheel_that_is_false_or_disabled_leaves_the_delay_to_celery(app: Any, add: Any, broker: Broker) -> None:
    add.apply_async((1, 2), countdown=60, wheel=False)
    stays_with_celery(broker)
    app.conf.wheel_enabled = False
    add.apply_async((1, 2), countdown=60, wheel={"key": "k"})
    stays_with_celery(broker)


@pytest.mark.parametrize(
    ("wheel", "key"), [(None, None), (True, None), ({}, None), ({"key": None}, None), ({"key": "order:42"}, "order:42")]
)
def test_the_envelope_has_the_key_of_the_call(send: Send, wheel: Any, key: str | None) -> None:
    assert send(wheel=wheel).key == key


@pytest.mark.parametrize(
    ("wheel", "error", "says"),
    [
        ({"keys": "x"}, TypeError, r"wheel options must be among key, .*, got 'keys'"),
        ({"key": "x", "b": 1, 3: 1}, TypeError, r"wheel options must be among key, .*, got 'b', 3"),
        ({"key": 42}, TypeError, r"wheel option key must be a text, got 42"),
        ({"key": ""}, ValueError, r"wheel option key must be a text of 1 to 512 characters, got ''"),
        ({"key": "x" * 513}, ValueError, r"key must be a text of 1 to 512 characters, got 'xxx"),
        ("no", TypeError, r"wheel must be True, False or a dict of options, got 'no'"),
        (0, TypeError, r"wheel must be True, False or a dict"),
    ],
)
@pytest.mark.parametrize("delay", [{"countdown": 60}, {}])
def test_an_invalid_option_is_refused_at_the_call(
    add: Any, broker: Broker, wheel: Any, error: type[Exception], says: str, delay: dict[str, Any]
) -> None:
    with pytest.raises(error, match=says):
        add.apply_async((1, 2), wheel=wheel, **delay)
    assert not broker.waiting()
    assert not broker.sent()


@pytest.mark.parametrize("wheel", [False, True, {"key": "k"}])
def test_options_do_not_leak_into_messages_without_a_delay(app: Any, add: Any, broker: Broker, wheel: Any) -> None:
    add.apply_async((1, 2), wheel=wheel)
    app.send_task("proj.add", (1, 2), wheel=wheel)
    add.s(1, 2).set(wheel=wheel).delay()
    raws = broker.raw("celery")
    assert len(raws) == 3
    assert not any(b"wheel" in raw for raw in raws)


@pytest.mark.parametrize(
    "wheel",
    [
        {"unique": "sync:7"},
        {"unique": "sync:7", "on_conflict": "replace"},
        {"watch": "order:42"},
        {"jitter": 30},
        {"misfire": "skip"},
        {"group": "tenant:42"},
        {"unique": "sync:7", "transactional": False},
    ],
)
@pytest.mark.parametrize("delay", [{}, {"countdown": 0}, {"countdown": -5}, {"eta": "2020-01-01"}, {"countdown": 2}])
def test_an_option_that_needs_the_store_sends_a_call_to_the_wheel_without_a_delay_too(
    app: Any, add: Any, broker: Broker, wheel: dict[str, Any], delay: dict[str, Any]
) -> None:
    app.conf.wheel_min_delay = 10
    add.apply_async((1, 2), wheel=wheel, **delay)
    message = broker.one_waiting()
    assert message.unique == wheel.get("unique")
    assert message.watch == (["order:42"] if "watch" in wheel else None)
    assert message.misfire_ms == (60_000 if "misfire" in wheel else None)
    asked_ms = message.eta_ms - NOW_MS
    assert asked_ms < 0 if "eta" in delay else -5_000 <= asked_ms <= 32_000
    app.conf.wheel_enabled = False
    add.apply_async((1, 2), wheel=wheel, **delay)
    broker.one_sent()


def test_signatures_keep_the_options(add: Any, broker: Broker) -> None:
    add.s(1, 2).set(wheel=False, countdown=60).delay()
    assert "wheel" not in broker.one_sent()["headers"]
    add.s(1, 2).set(wheel={"key": "k"}).apply_async(countdown=60)
    assert broker.one_waiting().key == "k"


def test_groups_and_chords_keep_the_options(make_app: MakeApp, broker: Broker) -> None:
    app = make_app(result_backend="cache+memory://")
    add, touch = app.tasks["proj.add"], app.tasks["proj.touch"]
    group(add.s(1, 2), add.s(3, 4)).apply_async(countdown=60, wheel={"key": "k"})
    assert [message.key for message in broker.waiting()] == ["k", "k"]
    chord([add.s(1, 2).set(wheel=False, countdown=60), add.s(3, 4).set(countdown=60)], touch.s()).apply_async()
    assert len(broker.waiting()) == len(broker.raw("celery")) == 1


def test_later_steps_of_a_chain_keep_the_options(app: Any, add: Any, broker: Broker) -> None:
    chain(add.s(1, 2), add.s(10).set(countdown=60, wheel={"key": "k"}), add.s(5).set(countdown=9, wheel=False))()
    run(app, broker.one_sent())
    second = broker.one_waiting()
    assert second.key == "k"
    assert b"wheel" not in second.headers + second.properties
    run(app, dispatched_form(second))
    stays_with_celery(broker)


def test_a_retry_may_have_options(app: Any, broker: Broker) -> None:
    @app.task(bind=True, name="proj.again", shared=False)
    def again(self: Any, wheel: Any) -> None:
        raise self.retry(countdown=60, wheel=wheel)

    again.delay({"key": "k"})
    run(app, broker.one_sent())
    assert broker.one_waiting().key == "k"
    again.delay(False)
    run(app, broker.one_sent())
    assert broker.one_sent()["headers"]["eta"].startswith("2")


def test_a_route_may_exclude_a_task_or_set_a_key(make_app: MakeApp, broker: Broker) -> None:
    app = make_app(task_routes={"proj.add": {"wheel": False}, "proj.touch": {"wheel": {"key": "of the route"}}})
    app.tasks["proj.add"].apply_async((1, 2), countdown=60)
    stays_with_celery(broker)
    app.tasks["proj.touch"].apply_async(countdown=60)
    assert broker.one_waiting().key == "of the route"
    app.tasks["proj.touch"].apply_async(countdown=60, wheel={"key": "of the call"})
    assert broker.one_waiting().key == "of the call"
    app.tasks["proj.touch"].delay()
    assert b"wheel" not in broker.raw("celery")[0]


def test_the_key_or_else_the_task_id_decides_the_shard(make_app: MakeApp, broker: Broker) -> None:
    add = make_app(wheel_shards=7, wheel_namespace="here").tasks["proj.add"]
    for number in range(30):
        add.apply_async((1, 2), countdown=60, task_id=f"t{number}")
        add.apply_async((1, 2), countdown=60, wheel={"key": "é"})
    found = {message.task_id: shard for shard in range(7) for message in broker.waiting(shard, "here")}
    assert len(found) == 60
    assert all(found[f"t{number}"] == crc32(f"t{number}".encode()) % 7 for number in range(30))
    assert {shard for task_id, shard in found.items() if len(task_id) > 3} == {crc32("é".encode()) % 7}


#: One of each kind of rule; tests/unit/conf has the rules.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"wheel_stroe": "sqlite:////tmp/x"}, "wheel_stroe is an unknown setting .*; did you mean wheel_store"),
    ({"wheel_store": "postgresq://user:secret@host/database"}, "wheel_store must be a database URL"),
    ({"wheel_rate_limits": {"celery": "junk"}}, "wheel_rate_limits must be a dict of rates"),
    ({"wheel_lease": 0}, "wheel_lease must be a time of at least 0.1 s"),
]


@pytest.mark.parametrize(("settings", "says"), WRONG)
def test_a_delayed_call_raises_until_the_setting_is_corrected(
    make_app: MakeApp, broker: Broker, settings: dict[str, Any], says: str
) -> None:
    app = make_app(**settings)
    for _ in range(2):
        with pytest.raises(SettingError, match=says) as caught:
            app.send_task("proj.add", (1, 2), countdown=60)
        assert "secret" not in str(caught.value)
    with pytest.raises(SettingError, match=says):
        _ = Wheel(app).store
    assert broker.waiting() == broker.sent() == []
    app.send_task("proj.add", (1, 2))  # no task of the wheel
    app.conf.wheel_enabled = False
    app.send_task("proj.add", (1, 2), countdown=60)
    broker.sent()
    for name in settings:
        for values in app.conf.maps:  # Celery 5.4 has it in two
            values.pop(name, None)
    app.conf.wheel_enabled = True
    app.send_task("proj.add", (1, 2), countdown=60)
    assert broker.one_waiting().task == "proj.add"


NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


@pytest.fixture(autouse=True)
def _frozen() -> Any:
    with freeze_time(NOW, ignore=["_pytest"]):
        yield


@pytest.fixture
def app(make_app: MakeApp) -> Any:
    return make_app(result_backend="cache+memory://")


def delay(message: Message) -> float:
    """Return the seconds until a message is due."""
    return (message.eta_ms - NOW_MS) / 1000


def steps(app: Any, broker: Broker, count: int) -> list[Message]:
    """Run the one pending message, and the one that it leaves, and so on; returns all of them."""
    found = []
    for _ in range(count):
        found.append(broker.one_waiting())
        run(app, dispatched_form(found[-1]))
    return found


def test_a_retry_keeps_id_destination_and_headers(app: Any, broker: Broker) -> None:
    @app.task(bind=True, name="proj.flaky", shared=False)
    def flaky(self: Any, x: int) -> None:
        raise self.retry(countdown=0.4)

    flaky.apply_async((1,), queue="emails", headers={"tenant": "a"}, priority=5, expires=3600, task_id="t")
    run(app, broker.one_sent("emails"))
    message = broker.one_waiting()
    assert (message.task_id, message.queue, delay(message)) == ("t", "emails", 0.4)
    assert b'"retries": 1' in message.headers
    assert b'"tenant": "a"' in message.headers
    assert message.expires_ms == NOW_MS + 3_600_000


def test_a_released_retry_retries_again_under_a_new_envelope(app: Any, broker: Broker) -> None:
    @app.task(bind=True, name="proj.flaky", shared=False, max_retries=5)
    def flaky(self: Any) -> None:
        raise self.retry(countdown=2**self.request.retries)

    flaky.apply_async(countdown=10)
    seen = steps(app, broker, 4)
    assert [delay(m) for m in seen] == [10, 1, 2, 4]
    assert len({m.task_id for m in seen}) == 1
    assert len({m.envelope_id for m in seen}) == 4
    assert not any(b"wheel" in m.headers + m.properties + m.body for m in seen)


def test_groups_and_skew_keep_their_delays(app: Any, broker: Broker) -> None:
    add = app.tasks["proj.add"]
    group(add.s(i, i) for i in range(3)).apply_async(countdown=7)
    assert [delay(m) for m in broker.waiting()] == [7, 7, 7]
    group(add.s(i, i) for i in range(3)).skew(start=1, stop=10)()
    assert [delay(m) for m in broker.waiting()] == [1, 2, 3]


def test_a_chord_on_a_backend_without_join_unlocks_by_way_of_the_wheel(
    make_app: MakeApp, broker: Broker, tmp_path: Path
) -> None:
    app = make_app(result_backend=f"file://{tmp_path}")
    add = app.tasks["proj.add"]
    chord([add.s(1, 2), add.s(3, 4)])(app.tasks["proj.touch"].s())
    [unlock] = broker.waiting()
    run(app, dispatched_form(unlock))  # not ready: it retries
    assert [(m.task, delay(m)) for m in (unlock, *broker.waiting())] == [("celery.chord_unlock", 1)] * 2
    for message in broker.sent():
        run(app, message)
    run(app, dispatched_form(unlock))
    assert broker.one_sent()["headers"]["task"] == "proj.touch"
