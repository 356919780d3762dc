"""An engine in this process over any kombu transport."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from celery_wheel.broker.virtual import KombuBroker
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.runner import Runner
from celery_wheel.store import open_store
from celery_wheel.timing import SystemClock


@contextmanager
def running(edge: KombuBroker, folder: Path) -> Iterator[Engine]:
    """Run an engine with a store of its own, none of whose jobs may end with a failure."""
    store = open_store(f"sqlite:///{folder}/wheel.sqlite3")
    engine = Engine(0, "here", store, edge, SystemClock())
    runner = Runner(engine, lease_ms=2_000, poll_ms=20)
    runner.start()
    try:
        yield engine
    finally:
        runner.stop()
        store.close()
    assert runner.pool.failure is None
