"""A task is scheduled if and only if the caller's transaction commits.

Changes of schedules inside real transactions, and async twins under Django's ASGI handler.
"""

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from asgiref.sync import async_to_sync
from celery import chain, signals
from django.contrib.auth.models import Group
from django.core.handlers.asgi import ASGIRequest
from django.db import DatabaseError, connections, transaction
from django.db.utils import IntegrityError, OperationalError
from django.http import HttpResponse, JsonResponse
from django.test import AsyncClient, override_settings
from django.urls import path
from kombu import Connection, Exchange, Queue
from kombu.transport.memory import Channel

from celery_wheel import NotCommitted, TransactionalRequest
from celery_wheel.broker import shard_of
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.broker.sealed import MessageSeal
from celery_wheel.conf import Conf
from celery_wheel.errors import DestinationError, RecurrenceError, ScheduleExists, SettingError
from celery_wheel.recurring import Crontab
from celery_wheel.requests.results import ScheduleAnswer
from celery_wheel.store.model import Message
from tests.admin.conftest import Configure
from tests.admin.transactional.conftest import ALIAS, Shop
from tests.kit.patience import PATIENCE_S, patience
from tests.kit.site import celery_app
from tests.unit.bulk_load.test_same_message import AT, CALLS, NOW
from tests.unit.producer.memory_broker import Broker


def send(task_id: str = "", **options: Any) -> str:
    options = {"countdown": 60, **options}
    found: str = celery_app.send_task("site.nothing", (1,), task_id=task_id or None, **options).id
    return found


@contextmanager
def failing() -> Iterator[None]:
    with suppress(ZeroDivisionError), transaction.atomic(using=ALIAS):
        yield
        raise ZeroDivisionError


def groups() -> list[str]:
    return list(Group.objects.using(ALIAS).values_list("name", flat=True))


def sent(queue: str = "celery") -> int:
    waiting = Channel.queues.get(queue)
    return waiting.qsize() if waiting is not None else 0


def test_a_commit_schedules_and_no_other_connection_sees_the_task_before(shop: Shop) -> None:
    with transaction.atomic(using=ALIAS):
        Group.objects.using(ALIAS).create(name="order")
        send("a")
        assert shop.waiting() == []
    assert shop.waiting() == ["a"]
    assert sent("wheel.0") == 0


def test_a_message_in_the_inbox_is_signed_and_may_name_any_queue(shop: Shop, conf: Configure) -> None:
    conf(wheel_destinations=["mail"])
    with pytest.raises(DestinationError, match="'celery'"):
        send("a")
    conf(wheel_destinations=["mail"], wheel_signing_keys=["a secret of thirty-two characters"])
    send("b")
    [item] = shop.items()
    found = QueuedMessageReader(seal=MessageSeal.of(Conf(celery_app))).decode(item.payload)
    assert isinstance(found, Message)
    assert (found.task_id, found.queue, found.signed) == ("b", "celery", True)


def test_a_rollback_schedules_nothing(shop: Shop) -> None:
    with failing():
        Group.objects.using(ALIAS).create(name="order")
        send("a")
    with transaction.atomic(using=ALIAS):
        send("b")
        transaction.set_rollback(True, using=ALIAS)
    assert (shop.waiting(), groups()) == ([], [])


def test_a_savepoint_that_is_rolled_back_removes_only_the_tasks_scheduled_in_it(shop: Shop) -> None:
    with transaction.atomic(using=ALIAS):
        send("outer before")
        with failing():
            send("inner")
        with transaction.atomic(using=ALIAS):
            send("inner, kept")
        begin = getattr(transaction, "savepoint_create", transaction.savepoint)  # its name since Django 6.1
        point = begin(using=ALIAS)
        send("by hand")
        transaction.savepoint_rollback(point, using=ALIAS)
        send("outer after")
    assert shop.waiting() == ["outer before", "inner, kept", "outer after"]


def test_a_committed_inner_block_in_a_rolled_back_one_schedules_nothing(shop: Shop) -> None:
    with failing(), transaction.atomic(using=ALIAS):
        send()
    assert shop.waiting() == []


def test_without_a_transaction_a_task_is_in_the_inbox_at_once(shop: Shop) -> None:
    send("a")
    assert shop.waiting() == ["a"]


def test_with_autocommit_off_a_task_waits_for_the_commit(shop: Shop) -> None:
    transaction.set_autocommit(False, using=ALIAS)
    try:
        send("a")
        assert shop.waiting() == []
        transaction.rollback(using=ALIAS)
        send("b")
        transaction.commit(using=ALIAS)
    finally:
        transaction.set_autocommit(True, using=ALIAS)
    assert shop.waiting() == ["b"]


def test_an_on_commit_hook_runs_after_the_commit(shop: Shop) -> None:
    seen: list[list[str]] = []
    with transaction.atomic(using=ALIAS):
        transaction.on_commit(lambda: send("on commit"), using=ALIAS)
        transaction.on_commit(lambda: seen.append(shop.waiting()), using=ALIAS)
        send("in it")
    assert seen == [["in it", "on commit"]]
    assert shop.waiting() == ["in it", "on commit"]


def test_a_thousand_tasks_are_scheduled_in_one_transaction(shop: Shop) -> None:
    with transaction.atomic(using=ALIAS):
        ids = [send() for _ in range(1_000)]
        assert shop.waiting() == []
    assert shop.waiting() == ids


def test_each_thread_has_its_own_transaction(shop: Shop) -> None:
    """On SQLite the threads take turns, since a file has one writer."""
    both, errors = threading.Barrier(2), []

    def run(name: str, fails: bool) -> None:
        try:
            both.wait(patience(10))
            with transaction.atomic(using=ALIAS):
                send(name)
                transaction.set_rollback(fails, using=ALIAS)
        except BaseException as error:
            errors.append(error)
        finally:
            connections[ALIAS].close()

    threads = [threading.Thread(target=run, args=(name, name == "b")) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience(30))
    assert (errors, shop.waiting()) == ([], ["a"])


def test_an_error_of_the_database_is_raised_unchanged_and_breaks_the_transaction(shop: Shop) -> None:
    Group.objects.using(ALIAS).create(name="one")
    with suppress(IntegrityError), transaction.atomic(using=ALIAS):
        send("before")
        Group.objects.using(ALIAS).create(name="one")
    assert shop.waiting() == []
    with transaction.atomic(using=ALIAS):
        with pytest.raises(DatabaseError) as broken, connections[ALIAS].execute_wrapper(_fails):
            send()
        assert str(broken.value) == "disk full"
        with pytest.raises(transaction.TransactionManagementError):
            send()
        transaction.set_rollback(True, using=ALIAS)
    assert shop.waiting() == []


def _fails(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    if "wheel_inbox" in sql:
        raise DatabaseError("disk full")
    return execute(sql, params, many, context)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_deferred_transaction_of_sqlite_that_has_read_may_be_refused(shop: Shop) -> None:
    """The system check W005 warns about this case: the database raises its error, and everything is rolled back."""
    with suppress(OperationalError), transaction.atomic(using=ALIAS):
        assert groups() == []
        shop.store.put_inbox(0, [("message", b"the wheel writes")])
        send("a")
        pytest.fail("it was not refused")
    assert [item.payload for item in shop.items()] == [b"the wheel writes"]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_connection_that_the_server_ended_is_replaced_after_one_error(shop: Shop) -> None:
    """In a process without requests Django itself closes no broken connection."""
    send("before")
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid = cursor.fetchone()[0]
    with shop.store.database.reading() as other:
        other.exec_driver_sql(f"SELECT pg_terminate_backend({pid}, 10000)")
    with pytest.raises(DatabaseError):
        send("lost")
    send("after")
    assert shop.waiting() == ["before", "after"]


@pytest.mark.parametrize("option", ["key", "group"])
def test_a_message_and_a_command_are_put_into_their_shards(shop: Shop, conf: Configure, option: str) -> None:
    conf(wheel_shards=3)
    keys = {shard: next(key for key in "abcdefgh" if shard_of(key, "", 3) == shard) for shard in range(3)}
    with transaction.atomic(using=ALIAS):
        for shard, key in keys.items():
            send(f"in {shard}", wheel={option: key})
        celery_app.wheel.cancel("in 1", transactional=True)
    for shard in keys:
        message, command = shop.store.read_inbox(shard, 10)
        assert shop.message(message).task_id == f"in {shard}"
        assert (command.kind, b'"in 1"' in command.payload) == ("cancel", True)


def test_the_options_of_a_call_are_kept(shop: Shop) -> None:
    wheel = {"unique": "order:1", "on_conflict": "replace", "watch": ["x", "y"], "misfire": 5}
    with transaction.atomic(using=ALIAS):
        send("a", wheel=wheel, priority=3, queue="mail", headers={"tenant": "t"})
        send("b", wheel={"key": "k"})
    first, second = (shop.message(item) for item in shop.items())
    assert (first.unique, first.on_conflict, first.watch, first.misfire_ms) == ("order:1", "replace", ["x", "y"], 5_000)
    assert (first.priority, first.queue, second.key) == (3, "mail", "k")
    assert b'"tenant": "t"' in first.headers


def test_a_call_with_transactional_false_goes_to_the_broker_at_once(shop: Shop) -> None:
    with transaction.atomic(using=ALIAS):
        send("a", wheel={"transactional": False})
        assert sent("wheel.0") == 1
        transaction.set_rollback(True, using=ALIAS)


def test_a_call_with_transactional_true_does_not_need_the_setting(shop: Shop, conf: Configure) -> None:
    conf(wheel_transactional=False)
    with transaction.atomic(using=ALIAS):
        send("plain")
        send("a", wheel={"transactional": True})
        transaction.set_rollback(True, using=ALIAS)
    assert (shop.waiting(), sent("wheel.0")) == ([], 1)
    send("b", wheel={"transactional": True})
    assert shop.waiting() == ["b"]


def test_a_call_without_a_delay_waits_for_the_commit_if_it_is_transactional(shop: Shop) -> None:
    with transaction.atomic(using=ALIAS):
        send("a", countdown=None)
        assert sent() == 1
        send("b", countdown=None, wheel={"transactional": True})
        assert sent() == 1
    assert shop.waiting() == ["b"]


def test_a_task_that_is_due_by_now_is_not_dispatched_before_the_commit(shop: Shop, conf: Configure) -> None:
    conf(wheel_min_delay=10)
    with transaction.atomic(using=ALIAS):
        send("past", countdown=None, eta=datetime.now(UTC) - timedelta(hours=1))
        send("soon", countdown=1)
        assert sent() == 0
    assert shop.waiting() == ["past", "soon"]


def test_signals_are_sent_once_and_name_the_true_destination(shop: Shop) -> None:
    told: list[tuple[str, str, bool]] = []

    def hear(signal: Any, routing_key: str, headers: dict[str, Any], **_: Any) -> None:
        told.append((signal.name, routing_key, "wheel" in headers))

    heard = (signals.before_task_publish, signals.after_task_publish)
    for one in heard:
        one.connect(hear)
    try:
        with transaction.atomic(using=ALIAS):
            send(queue="mail")
    finally:
        for one in heard:
            one.disconnect(hear)
    assert [one[:2] for one in told] == [("before_task_publish", "mail"), ("after_task_publish", "mail")]
    assert not told[-1][2]


def test_the_event_task_sent_is_sent_once(shop: Shop, conf: Configure) -> None:
    conf(task_send_sent_event=True)
    with Connection("memory://") as connection:
        Queue("events", Exchange("celeryev", "topic"), "#")(connection.default_channel).declare()
        with transaction.atomic(using=ALIAS):
            send("a", queue="mail")
    [event] = Broker().sent("events")
    said = json.loads(base64.b64decode(event["body"]))
    assert (said["type"], said["uuid"], said["queue"]) == ("task-sent", "a", "mail")
    assert shop.waiting() == ["a"]


def test_the_message_in_the_inbox_equals_the_message_in_the_wheel_queue(shop: Shop) -> None:
    """The calls are those of the tests of bulk loads."""
    for kind, options in CALLS.items():
        options = {"eta": AT, "task_id": "same", "args": (1, "é"), "kwargs": {"x": None}, **options}
        args, kwargs = options.pop("args"), options.pop("kwargs")
        for transactional in (True, False):
            wheel = {**options.get("wheel", {}), "transactional": transactional}
            with time_machine.travel(NOW, tick=False):
                celery_app.send_task("site.nothing", args, kwargs, **{**options, "wheel": wheel})
        [item], [queued] = shop.items(), Broker().waiting()
        assert same(shop.message(item)) == same(queued), kind
        assert shop.store.withdraw(item.id, (0, item.kind, item.payload))


def same(message: Message) -> dict[str, Any]:
    return {**asdict(message), "envelope_id": None}


def test_a_chain_with_delays_is_one_message_in_the_inbox(shop: Shop) -> None:
    step = celery_app.signature("site.nothing")
    with transaction.atomic(using=ALIAS):
        first, second, link = (step.clone().set(countdown=seconds) for seconds in (5, 9, 3))
        chain(first, second).apply_async(link=link)
        assert shop.waiting() == []
    [item] = shop.items()
    assert b'"countdown": 9' in shop.message(item).body


def test_a_route_cannot_have_the_option_transactional(shop: Shop, conf: Configure) -> None:
    conf(task_routes={"site.nothing": {"wheel": {"transactional": True}}})
    with pytest.raises(TypeError, match="must be a call's"):
        send()


@pytest.fixture
def running(shop: Shop) -> Any:
    """Run a task of the site as a worker does, its body a function of the test's."""

    def run(body: Callable[[Any], None]) -> Any:
        from celery.app.trace import build_tracer

        @celery_app.task(name="site.body", bind=True, shared=False)
        def task(self: Any) -> None:
            body(self)

        try:
            request = {"is_eager": False, "delivery_info": {}, "id": "running", "retries": 0, "args": [], "kwargs": {}}
            return build_tracer("site.body", task, app=celery_app)("running", (), {}, request)
        finally:
            celery_app.tasks.pop("site.body")

    return run


def test_a_retry_is_not_lost_with_the_transaction_that_it_ends(shop: Shop, running: Any) -> None:
    def body(task: Any) -> None:
        with transaction.atomic(using=ALIAS):
            Group.objects.using(ALIAS).create(name="half")
            send("another")
            raise task.retry(countdown=60)

    running(body)
    assert (groups(), shop.waiting(), sent("wheel.0")) == ([], [], 1)


def test_a_retry_with_the_option_is_part_of_the_transaction(shop: Shop, running: Any) -> None:
    def body(task: Any) -> None:
        with transaction.atomic(using=ALIAS):
            task.retry(countdown=60, throw=False, wheel={"transactional": True})
            Group.objects.using(ALIAS).create(name="half")

    running(body)
    assert (groups(), shop.waiting(), sent("wheel.0")) == (["half"], ["running"], 0)


def test_another_task_that_a_task_schedules_is_part_of_its_transaction(shop: Shop, running: Any) -> None:
    def body(task: Any) -> None:
        with transaction.atomic(using=ALIAS):
            send("a")
            transaction.set_rollback(True, using=ALIAS)
        with transaction.atomic(using=ALIAS):
            send("b")

    running(body)
    assert (shop.waiting(), sent("wheel.0")) == (["b"], 0)


@pytest.mark.parametrize(
    ("store", "says"),
    [
        ("sqlite:////tmp/elsewhere.sqlite3", r"needs wheel_store = django://default .*, got sqlite://…"),
        ("postgresql://user:secret@host/db", r"got postgresql://…"),
        ("django://nowhere", r"must name an entry of DATABASES, got django://nowhere"),
    ],
)
def test_a_store_elsewhere_is_refused_at_the_call(shop: Shop, conf: Configure, store: str, says: str) -> None:
    conf(wheel_store=store)
    with pytest.raises(SettingError, match=says) as refused:
        send()
    assert "secret" not in str(refused.value)
    assert (sent(), sent("wheel.0")) == (0, 0)


@pytest.mark.django_db(transaction=True)
def test_a_transaction_of_another_database_alone_is_refused(shop: Shop) -> None:
    with (
        transaction.atomic(),
        pytest.raises(SettingError, match=r"needs a transaction on 'shop'.*one on 'default' only"),
    ):
        send("a")
    with transaction.atomic(), transaction.atomic(using=ALIAS):
        send("b")
        transaction.set_rollback(True)
    assert shop.waiting() == ["b"]  # the database of the store decides


@pytest.mark.parametrize("change", [{"wheel_enabled": False}, {"broker_url": "filesystem://"}])
def test_where_the_wheel_accepts_nothing_a_call_with_transactional_true_is_refused(
    shop: Shop, conf: Configure, change: dict[str, Any]
) -> None:
    conf(**change)
    with pytest.raises(SettingError, match="needs wheel_enabled = True, a transport"):
        send(wheel={"transactional": True})


def test_with_the_wheel_switched_off_the_setting_is_off_too(shop: Shop, conf: Configure) -> None:
    conf(wheel_enabled=False)
    send()
    assert sent() == 1


@pytest.fixture
def bell(shop: Shop) -> Iterator[Any]:
    """A scheduler's bell, and the function that returns whether it rang."""
    with closing(shop.store.bell()) as bell:
        yield bell


def rang(bell: Any, most_s: float) -> bool:
    began_s = time.monotonic()
    bell.wait(most_s)
    return time.monotonic() - began_s < most_s


def test_a_commit_rings_once_and_a_rollback_does_not(shop: Shop, bell: Any) -> None:
    with failing():
        send("a")
    assert not rang(bell, 0.01)
    with transaction.atomic(using=ALIAS):
        send("b")
        with failing():
            send("c")
        send("d")
        assert not rang(bell, 0.01)
        assert len(connections[ALIAS].run_on_commit) == 1
    assert rang(bell, patience(PATIENCE_S))
    send("e")
    assert rang(bell, patience(PATIENCE_S))


def test_with_autocommit_off_postgresql_rings_at_the_commit(shop: Shop, bell: Any) -> None:
    if shop.vendor != "postgresql":
        return  # SQLite's schedulers look within a second
    transaction.set_autocommit(False, using=ALIAS)
    try:
        send("a")
        assert not rang(bell, 0.01)
        transaction.commit(using=ALIAS)
    finally:
        transaction.set_autocommit(True, using=ALIAS)
    assert rang(bell, patience(PATIENCE_S))


NINE = Crontab("0", "9")
DONE, ALREADY = ScheduleAnswer("done"), ScheduleAnswer("already")


def names() -> list[str]:
    return [one.name for one in celery_app.wheel.schedules.list(source="api")]


def test_changes_are_part_of_the_transaction(live: Shop) -> None:
    schedules = celery_app.wheel.schedules
    assert schedules.create("kept", NINE, "site.nothing") == DONE
    with failing():
        schedules.delete("kept")
        schedules.create("never", NINE, "site.nothing")
    with transaction.atomic(using=ALIAS):
        created: Any = schedules.create("report", NINE, "site.nothing")
        paused = schedules.pause(["kept", "report"], "holidays", transactional=True)
        many: Any = schedules.create_many(
            {name: {"recurrence": NINE, "task": "site.nothing"} for name in ("report", "a", "b")}
        )
        changed: Any = schedules.update(schedules.where(prefix="ke"), queue="mail")
        assert isinstance(paused, TransactionalRequest)
        with pytest.raises(RecurrenceError, match="schedule 'c': args must be a list like"):
            schedules.create_many({"c": {"recurrence": NINE, "task": "site.nothing", "args": 1}})
        with pytest.raises(NotCommitted, match="still open, or was rolled back"):
            created.result()
        assert names() == ["kept"]
    assert created.result() == DONE
    assert paused.result() == {"kept": DONE, "report": DONE}
    assert many.result() == {"report": ALREADY, "a": DONE, "b": DONE}
    assert changed.result() == {"kept": DONE}
    assert names() == ["a", "b", "kept", "report"]
    assert schedules.get("kept").options == {"queue": "mail"}
    with pytest.raises(ScheduleExists):
        schedules.create("report", NINE, "site.nothing", transactional=False)


async def order(request: ASGIRequest) -> HttpResponse:
    wheel = celery_app.wheel
    answer = await wheel.schedules.acreate("ordered", NINE, "site.nothing", exists="update")
    found, pending = await wheel.schedules.aget("ordered"), await wheel.apending()
    return JsonResponse({"result": answer.result, "revision": found.revision, "tasks": len(pending.items)})


urlpatterns = [path("order", order)]


def test_a_view_under_asgi_awaits_the_twins(live: Shop) -> None:
    async def get() -> Any:
        return (await AsyncClient().get("/order")).json()

    with override_settings(ROOT_URLCONF=__name__):
        assert async_to_sync(get)() == {"result": "done", "revision": 1, "tasks": 0}


def test_a_twin_joins_the_transaction_of_the_synchronous_code_around_it(live: Shop) -> None:
    async def create(name: str) -> Any:
        return await celery_app.wheel.schedules.acreate(name, NINE, "site.nothing")

    assert names() == []  # opens the store here: in a thread of another test the alias may name another database
    with failing():
        async_to_sync(create)("never")
    with transaction.atomic(using=ALIAS):
        created = async_to_sync(create)("report")
        assert isinstance(created, TransactionalRequest)
    assert async_to_sync(created.aresult)() == DONE
    assert names() == ["report"]
