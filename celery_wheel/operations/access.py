"""The store and the broker of an app, for operations on an installation that exists."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from celery_wheel.broker import broker_for
from celery_wheel.broker.owner import meet_broker
from celery_wheel.conf import Conf
from celery_wheel.engine.port import Broker
from celery_wheel.store import open_store
from celery_wheel.store.ports import FullStore


def open_existing_store(app: Any) -> FullStore:
    """Open the app's store. Raises StoreError where it does not exist. The caller closes it."""
    conf = Conf(app)
    return open_store(conf.store, durability=conf.durability, shards=None, create=False, lease_ms=conf.lease_ms)


@contextmanager
def open_both(app: Any, *, any_broker: bool = False) -> Iterator[tuple[FullStore, Broker]]:
    """Open the app's store, which must exist, and its broker's edge; close both in the end.

    Raises StoreConflict where the store dispatches to another broker, unless it may be any.
    """
    with closing(open_existing_store(app)) as store, closing(broker_for(app, Conf(app), store)) as broker:
        if not any_broker:
            meet_broker(app, store)
        yield store, broker
