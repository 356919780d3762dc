"""An engine on the models of store and broker, and a store of its own for the totals."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_wheel.engine.stats import Histogram
from celery_wheel.metrics import samples
from celery_wheel.metrics.samples import Collect
from celery_wheel.store import open_store
from celery_wheel.store.sql.store import SqlStore
from tests.kit.new_stores import new_file
from tests.kit.patience import patience
from tests.unit.engine.conftest import Rig

Read = Callable[[Collect], dict[str, dict[tuple[str, ...], float]]]


@pytest.fixture(autouse=True)
def patient_scrapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a scrape wait for the store and the broker as long as this machine needs."""
    monkeypatch.setattr(samples, "ANSWER_S", patience())


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def sql_store(tmp_path: Path) -> Iterator[SqlStore]:
    store = open_store(new_file(tmp_path / "wheel.sqlite3", shards=2), shards=2)
    yield store
    store.close()


def read(collect: Collect) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the values by metric and labels; of a histogram, the number of its durations."""
    return {
        metric.name: {labels: sum(value.counts) if isinstance(value, Histogram) else value for labels, value in samples}
        for metric, samples in collect()
    }
