"""The health of a scheduler process: live, ready, and why not; the span of a publish, linked to its messages."""

import json
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from celery_wheel.engine.engine import Engine
from celery_wheel.engine.pool import Pool, Stuck
from celery_wheel.errors import BrokerError, StoreError
from celery_wheel.overview import read_overview
from celery_wheel.scheduler import monitoring
from celery_wheel.scheduler.monitoring import Health
from celery_wheel.scheduler.spans import MAX_LINKS, DispatchSpans
from celery_wheel.store import open_store
from celery_wheel.store.model import Row
from celery_wheel.store.sql.store import SqlStore
from tests.kit.holder import NOW, Holder, message
from tests.unit.engine.conftest import Rig

OBJECTIVE_MS = 5_000


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    found = open_store(f"sqlite:///{tmp_path}/wheel.sqlite3")
    Holder(found)
    yield found
    found.close()


def health_of(store: SqlStore, *engines: Engine, failure: BaseException | None = None) -> Health:
    pool = Pool()
    pool.failure = failure and ("ingest of shard 0", failure)
    return Health(lambda: engines, pool, lambda: read_overview(store, NOW), OBJECTIVE_MS)


def test_a_holder_in_time_is_live_and_ready(rig: Rig, store: SqlStore) -> None:
    rig.run(rounds=1)
    Holder(store).accept(NOW - OBJECTIVE_MS)
    found = health_of(store, rig.engine)
    assert (found.livez(""), found.readyz("")) == ((200, b"ok\n", monitoring.HttpAnswer(1, b"").content_type),) * 2


def test_a_holder_that_is_later_than_the_objective_is_not_ready(rig: Rig, store: SqlStore) -> None:
    Holder(store).accept(NOW - OBJECTIVE_MS - 500)
    found = health_of(store, rig.engine)
    assert found.not_ready() == [], "another process holds the shard"
    rig.run(rounds=1)
    assert found.not_live() == []
    assert found.not_ready() == ["shard 0 is 5.5 s late, and wheel_objective allows 5 s"]


def test_a_standby_is_ready_while_another_holds_the_shard(rig: Rig, store: SqlStore) -> None:
    standby = Engine(0, "two", rig.store, rig.broker, rig.clock, rig.limits)
    assert health_of(store, standby).not_ready() == []
    store.release(0, store.state(0).epoch)
    assert health_of(store, standby).not_ready() == ["shard 0 has no holder"]


def test_a_store_and_a_broker_that_do_not_answer_are_named(
    rig: Rig, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.browse, "overview", mock.Mock(side_effect=StoreError("gone")))
    monkeypatch.setattr(rig.broker, "depth", mock.Mock(side_effect=BrokerError("refused")))
    found = health_of(store, rig.engine)
    assert found.not_ready() == ["the store does not answer: gone", "the broker does not answer: refused"]
    assert found.livez("").status == 200, "a restart would not help"
    assert found.readyz("").status == 503


def test_a_clock_that_is_too_far_off_is_named(rig: Rig, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.engine.clock, "_fit", False)
    assert "clock" in health_of(store, rig.engine).not_ready()[0]


def test_a_process_whose_engine_failed_is_not_live(rig: Rig, store: SqlStore) -> None:
    found = health_of(store, rig.engine, failure=LookupError("a defect"))
    assert found.livez("").status == 503
    assert b"a defect" in found.livez("").body
    assert found.readyz("").status == 503


@pytest.mark.parametrize(
    ("runs", "answers", "live"), [(True, True, False), (True, False, True), (False, True, False), (False, False, False)]
)
def test_a_stuck_job_is_not_live_unless_it_may_wait_for_a_silent_server(
    rig: Rig, store: SqlStore, monkeypatch: pytest.MonkeyPatch, runs: bool, answers: bool, live: bool
) -> None:
    found = health_of(store, rig.engine)
    monkeypatch.setattr(found._pool, "stuck", lambda: [Stuck("settle of shard 0", 14, runs)])
    if not answers:
        monkeypatch.setattr(rig.broker, "depth", mock.Mock(side_effect=BrokerError("refused")))
    assert (found.not_live() == []) is live
    assert live or "the job settle of shard 0" in found.not_live()[0]


def test_a_process_without_engines_is_starting_or_stopping(store: SqlStore) -> None:
    assert health_of(store).not_ready() == ["the scheduler is starting or stopping"]


TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def row(number: int, flags: str | None = "01", **parts: object) -> Row:
    headers: dict[str, object] = {"lang": "py", "id": f"t{number}"}
    if flags is not None:
        headers["traceparent"] = f"00-{TRACE}-{SPAN}-{flags}"
    return Row.of(message(headers=json.dumps(headers).encode(), eta_ms=NOW - 40, **parts), number, 0, NOW, number)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> DispatchSpans:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return DispatchSpans(3, provider)


def test_a_span_links_the_sampled_traces_of_its_messages_and_is_a_trace_of_its_own(
    spans: DispatchSpans, exporter: InMemorySpanExporter
) -> None:
    spans([row(1), row(2, "00"), row(3, None)], NOW, NOW + 5)
    [span] = exporter.get_finished_spans()
    assert span.parent is None
    assert (span.start_time, span.end_time) == (NOW * 10**6, (NOW + 5) * 10**6)
    assert (span.attributes or {})["messaging.batch.message_count"] == 3
    [link] = span.links
    assert (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") == (TRACE, SPAN)
    assert span.context is not None
    assert span.context.trace_id != link.context.trace_id
    assert dict(link.attributes or {}) == {
        "messaging.message.id": "t1",
        "messaging.destination.name": "celery",
        "celery.task_name": "app.remind",
        "wheel.eta_ms": NOW - 40,
        "wheel.late_ms": 40,
    }


def test_messages_without_a_sampled_trace_have_no_span(spans: DispatchSpans, exporter: InMemorySpanExporter) -> None:
    damaged = row(4)
    damaged.packed = b"?"
    # A traceparent in the arguments of a task is no context.
    body = row(5, None, body=f'"traceparent": "00-{TRACE}-{SPAN}-01"'.encode())
    spans([row(2, "00"), row(3, None), damaged, body], NOW, NOW)
    assert exporter.get_finished_spans() == ()


def test_a_large_publish_has_several_spans(spans: DispatchSpans, exporter: InMemorySpanExporter) -> None:
    spans([row(n) for n in range(MAX_LINKS + 1)], NOW, NOW)
    assert [len(span.links) for span in exporter.get_finished_spans()] == [MAX_LINKS, 1]
