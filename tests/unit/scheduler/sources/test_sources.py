"""The thread of the sources: its log names the part that failed, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_wheel import Celery
from celery_wheel.conf import Conf
from celery_wheel.scheduler.sources.sources import Sources
from celery_wheel.store.ports import FullStore


class Counts:
    """Run counts without a database."""

    def run(self, store: FullStore) -> None: ...

    def close(self) -> None: ...


def test_a_failure_of_the_run_counts_is_named_once_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.wheel_store = f"sqlite:///{tmp_path}/no/such.sqlite3"
    sources = Sources(Conf(app), [], lambda: True, beside=[Counts()])
    assert not sources.look()
    assert not sources.look()
    sources.stop()
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("periodic entries (run counts) cannot be followed: ")
