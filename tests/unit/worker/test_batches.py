"""A ``Batches`` task: closed calls of all kinds become one message, and each call ends as a task of its own."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chord, group, signals, states
from celery.app.trace import build_tracer
from celery.exceptions import Reject
from celery.result import AsyncResult
from kombu.compression import compress
from kombu.serialization import dumps

from celery_wheel import Batches, Celery
from celery_wheel.broker.batches import MAX_BYTES, MergedRow, ids_of, merge, publish_merged
from celery_wheel.broker.envelope import BATCH
from celery_wheel.engine.port import Confirmed
from celery_wheel.errors import PublishInterrupted
from celery_wheel.store.model import Row
from tests.kit.chunks import make_row

Sender = Callable[..., list[Row]]


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Any]:
    app = Celery("proj", broker="memory://", backend=f"file://{tmp_path}", set_as_current=False)
    app.conf.update(wheel_enabled=False, accept_content=["json", "pickle"], result_accept_content=["json", "pickle"])
    app.conf.result_serializer = "pickle"
    yield app
    app.close()


def declare(app: Any, run: Callable[..., Any], **options: Any) -> Any:
    def many(calls: Any) -> Any:
        return run(calls)

    bound = options.get("bind", False)
    return app.task(name="proj.many", base=Batches, shared=False, **options)(run if bound else many)


def call(app: Any, number: int, *args: Any, name: str = "b", **how: Any) -> Row:
    """Return the stored row of a call; ``how`` are arguments of ``as_task_v2``, and serializer and compression."""
    serializer, method = how.pop("serializer", "json"), how.pop("compression", None)
    sent = app.amqp.as_task_v2(f"call-{number}", how.pop("task", "proj.many"), args, {}, **how)
    kind, encoding, body = dumps(sent.body, serializer=serializer)
    body, headers = body if isinstance(body, bytes) else body.encode(), {**sent.headers, BATCH: name}
    if method:
        body, headers["compression"] = compress(body, method)
    properties = {"content_type": kind, "content_encoding": encoding, **sent.properties, "delivery_mode": 2}
    parts = {"headers": json.dumps(headers).encode(), "properties": json.dumps(properties).encode(), "body": body}
    return make_row(number, batch=100, task="proj.many", **parts)


def deliver(app: Any, rows: list[Row], **more: Any) -> Any:
    """Run the one message of the rows as a worker's process does; returns Celery's trace information."""
    (row,) = merge(rows)
    parts = row.parts()
    headers = json.loads(parts.headers)
    args, kwargs, embed = json.loads(parts.body)
    task = app.tasks[headers["task"]]
    request = {**headers, **embed, "args": args, "kwargs": kwargs, "delivery_info": {}, "hostname": "here", **more}
    return build_tracer(task.name, task, app=app)(headers["id"], args, kwargs, request).info


def results(app: Any, count: int) -> list[Any]:
    return [AsyncResult(f"call-{number}", app=app).result for number in range(1, count + 1)]


def found_states(app: Any, count: int) -> list[str]:
    return [AsyncResult(f"call-{number}", app=app).state for number in range(1, count + 1)]


def test_each_call_of_a_message_has_its_own_result(app: Any) -> None:
    declare(app, lambda calls: [sum(one.args) for one in calls])
    info = deliver(app, [call(app, n, n, 10) for n in (1, 2, 3)])
    assert results(app, 3) == [11, 12, 13]
    assert info.state == states.IGNORED, "the message itself has no result"


def test_calls_keep_their_serializers_and_compression(app: Any) -> None:
    declare(app, lambda calls: [one.args[0] for one in calls])
    kinds = [{}, {"serializer": "pickle"}, {"compression": "zlib"}, {"serializer": "pickle", "compression": "bzip2"}]
    deliver(app, [call(app, number, "é", **kind) for number, kind in enumerate(kinds, 1)])
    assert results(app, 4) == ["é"] * 4


def test_a_call_that_cannot_be_read_fails_alone(app: Any) -> None:
    ran = []
    declare(app, lambda calls: ran.extend(one.args[0] for one in calls))
    rows = [call(app, 1, "a"), call(app, 2, "b", serializer="yaml"), call(app, 3, "c")]
    deliver(app, rows)
    assert ran == ["a", "c"]
    assert found_states(app, 3) == [states.SUCCESS, states.FAILURE, states.SUCCESS]
    assert "ContentDisallowed" in str(results(app, 3)[1])


def test_a_failure_in_the_list_is_that_of_one_call(app: Any) -> None:
    declare(app, lambda calls: [1, KeyError("two"), 3])
    deliver(app, [call(app, n) for n in (1, 2, 3)])
    assert found_states(app, 3) == [states.SUCCESS, states.FAILURE, states.SUCCESS]
    assert repr(results(app, 3)[1]) == "KeyError('two')"


def test_a_batch_that_fails_fails_each_call(app: Any) -> None:
    def fail(calls: Any) -> None:
        raise OSError("the database is away")

    declare(app, fail)
    deliver(app, [call(app, n) for n in (1, 2)])
    assert found_states(app, 2) == [states.FAILURE] * 2
    assert str(results(app, 2)[0]) == "the database is away"


@pytest.mark.parametrize("found", [[1], "text", {}, 7], ids=repr)
def test_other_results_fail_with_what_is_expected(app: Any, found: Any) -> None:
    declare(app, lambda calls: found)
    deliver(app, [call(app, n) for n in (1, 2)])
    assert "must return None, or a list with a result for each of its 2 calls, got" in str(results(app, 2)[1])


def test_results_that_the_task_stores_itself_stay(app: Any) -> None:
    """The form of celery-batches."""

    def store(calls: Any) -> None:
        app.backend.mark_as_done(calls[0].id, "own", request=calls[0])

    declare(app, store)
    deliver(app, [call(app, n) for n in (1, 2)])
    assert results(app, 2) == ["own", None]
    assert found_states(app, 2) == [states.SUCCESS] * 2


def test_an_expired_call_is_revoked_and_does_not_run(app: Any) -> None:
    ran, revoked = [], []
    signals.task_revoked.connect(lambda request, **_: revoked.append(request.id), weak=False, dispatch_uid="here")
    declare(app, lambda calls: ran.extend(one.id for one in calls))
    deliver(app, [call(app, 1, expires=-10), call(app, 2, expires=1_000)])
    signals.task_revoked.disconnect(dispatch_uid="here")
    assert (ran, revoked) == (["call-2"], ["call-1"])
    assert found_states(app, 2) == [states.REVOKED, states.SUCCESS]


def test_one_call_is_retried_by_celerys_own_rules(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    monkeypatch.setattr(app, "send_task", lambda name, *args, **options: sent.append((name, options)))
    declare(app, lambda calls: [calls[0].retry(countdown=60, exc=OSError("later"), max_retries=1), "done"])
    deliver(app, [call(app, 1), call(app, 2)])
    assert found_states(app, 2) == [states.RETRY, states.SUCCESS]
    ((name, options),) = sent
    assert (name, options["task_id"], options["retries"], options["countdown"]) == ("proj.many", "call-1", 1, 60)
    deliver(app, [call(app, 1, retries=1), call(app, 2)])
    assert (len(sent), str(results(app, 1)[0])) == (1, "later"), "it has been retried often enough"


def test_a_retry_or_a_rejection_of_the_task_is_about_the_message(app: Any) -> None:
    sent = []

    def again(self: Any, calls: Any) -> None:
        if calls[0].args[0] == "reject":
            raise Reject("no", requeue=False)
        raise self.retry(countdown=5)

    task = declare(app, again, bind=True)
    app.send_task = lambda name, args, *_, **options: sent.append((args, options["headers"]))
    info = deliver(app, [call(app, 1, "retry"), call(app, 2, "retry")])
    assert info.state == states.RETRY
    ((args, headers),) = sent
    assert (len(args[0]), headers[BATCH]) == (2, 2), "the same calls again"
    info = deliver(app, [call(app, 1, "reject"), call(app, 2, "reject")])
    assert info.state == states.REJECTED
    assert found_states(app, 2) == [states.PENDING] * 2
    assert task.max_retries == 3


def test_links_and_signals_are_those_of_each_call(app: Any) -> None:
    seen, linked = [], []
    app.send_task = lambda name, args, *_, **__: linked.append((name, tuple(args)))
    signals.task_success.connect(lambda result, **_: seen.append(result), weak=False, dispatch_uid="here")
    declare(app, lambda calls: ["a", "b"])
    link = app.signature("proj.linked")
    deliver(app, [call(app, 1, callbacks=[link]), call(app, 2)])
    signals.task_success.disconnect(dispatch_uid="here")
    assert (seen, linked) == (["a", "b"], [("proj.linked", ("a",))])


def test_a_chord_of_calls_ends_with_the_last_of_them(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def note(request: Any, *_: Any, **__: Any) -> None:
        ended.append(request.chord["id"])

    monkeypatch.setattr(app.backend, "on_chord_part_return", note)
    declare(app, lambda calls: ["a", KeyError("b")])
    deliver(app, [call(app, n, chord={"id": f"chord-{n}"}) for n in (1, 2)])
    assert ended == ["chord-1", "chord-2"]


def test_a_call_without_the_wheel_is_a_batch_of_one(app: Any) -> None:
    task = declare(app, lambda calls: [(one.id, one.name, one.args) for one in calls])
    ended = task.apply((1, 2), task_id="mine")
    assert ended.get() == ("mine", "proj.many", (1, 2))
    (alone,) = merge([call(app, 1, 5)])
    assert not isinstance(alone, MergedRow)
    app.conf.task_always_eager = True
    assert task.delay(7).get()[2] == (7,)
    assert [one.get()[2] for one in group(task.s(n) for n in (1, 2))()] == [(1,), (2,)]

    @app.task(name="proj.total", shared=False)
    def total(found: list[Any]) -> int:
        return len(found)

    assert chord([task.s(1), task.s(2)])(total.s()).get() == 2


def test_a_direct_call_runs_the_function(app: Any) -> None:
    task = declare(app, lambda calls: calls)
    assert task(["anything"]) == ["anything"]


def test_rows_of_batches_are_merged_up_to_their_size_in_order(app: Any) -> None:
    rows = [call(app, n, name="a" if n % 2 else "b") for n in range(1, 8)]
    rows[2:2] = [make_row(90)]
    assert [ids_of(one) for one in merge(rows)] == [(1, 3, 5, 7), (2, 4, 6), (90,)]
    plain = [make_row(n) for n in (1, 2)]
    assert merge(plain) is plain
    large = [call(app, n, "x" * (MAX_BYTES // 2)) for n in (1, 2, 3)]
    assert [ids_of(one) for one in merge(large)] == [(1,), (2,), (3,)]
    damaged = make_row(5, batch=100, headers=b"{damaged")
    assert [ids_of(one) for one in merge([call(app, 1), damaged, call(app, 2)])] == [(1, 2), (5,)]


def test_the_answer_of_a_broker_is_about_each_row(app: Any) -> None:
    rows = [call(app, n, name=name) for n, name in ((1, "a"), (2, "b"), (3, "a"), (4, "b"))]
    answer = publish_merged(rows, lambda merged: Confirmed({merged[0].id: "no queue"}, {merged[1].id: "full"}))
    assert (answer.failed, answer.refused) == ({1: "no queue", 3: "no queue"}, {2: "full", 4: "full"})

    def interrupted(merged: Any) -> Confirmed:
        raise PublishInterrupted("away", {merged[1].id})

    with pytest.raises(PublishInterrupted) as found:
        publish_merged(rows, interrupted)
    assert found.value.confirmed == {2, 4}


def test_a_message_of_many_calls_is_opened_in_little_time(app: Any) -> None:
    declare(app, lambda calls: None, ignore_result=True)
    rows = [call(app, n, n) for n in range(1, 101)]
    began = time.process_time()
    deliver(app, rows)
    assert time.process_time() - began < 1
