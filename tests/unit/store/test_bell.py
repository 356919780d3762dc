"""The bell: a commit that brings something for a holder rings it, a holder's own commits do not."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest

from celery_wheel.store import bell as bells
from celery_wheel.store import open_store
from celery_wheel.store.bell import FileBell
from celery_wheel.store.sql.store import SqlStore
from tests.kit.patience import PATIENCE_S, patience

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with closing(open_store(f"sqlite:///{tmp_path}/wheel.sqlite3")) as store:
        yield store


def rings(bell: object, most_s: float) -> bool:
    """Whether the bell rings before the time is over."""
    began_s = time.monotonic()
    bell.wait(most_s)  # type: ignore[attr-defined]
    return time.monotonic() - began_s < most_s


@pytest.mark.parametrize("write", ["put_inbox", "put_command"])
def test_a_writer_of_the_inbox_rings(store: SqlStore, write: str) -> None:
    with closing(store.bell()) as bell, closing(open_store(f"sqlite:///{store.name}")) as other:
        assert bell.tells
        if write == "put_inbox":
            other.put_inbox(0, [("cancel", b"{}")])
        else:
            other.put_command(0, "cancel", b"{}")
        assert rings(bell, patience(PATIENCE_S))
        assert store.arrivals([0]) == [0]


def test_a_holder_does_not_ring(store: SqlStore) -> None:
    with closing(store.bell()) as bell:
        epoch = store.acquire(0, "one", 1_000, 2_000)
        assert epoch is not None
        store.renew(0, epoch, 1_000, 2_000, {})
        assert not rings(bell, 0.01)


def test_a_system_without_inotify_is_polled(store: SqlStore) -> None:
    with mock.patch.object(bells.ctypes, "CDLL", return_value=object()), closing(FileBell(store.name)) as bell:
        assert not bell.tells
        store.put_inbox(0, [("cancel", b"{}")])
        assert not rings(bell, 0.01)
