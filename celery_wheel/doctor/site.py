"""What is looked at: an app, its settings, and its store and its broker, each opened when it is first asked for.

A store or a broker that cannot be had is None, and why is in ``store_trouble`` and ``broker_trouble``.
"""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from celery_wheel.broker import broker_for, refusal
from celery_wheel.conf import Conf
from celery_wheel.engine.port import Broker
from celery_wheel.errors import WheelError
from celery_wheel.status import ShardStatus, status_of
from celery_wheel.store import open_store
from celery_wheel.store.ports import FullStore

if TYPE_CHECKING:
    from celery_wheel.broker.redis.edge import RedisBroker


class Site:
    """Usable as a context manager, which closes what was opened."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.conf = Conf(app)
        self.store_trouble = ""
        self.broker_trouble = ""

    @cached_property
    def store(self) -> FullStore | None:
        try:
            return open_store(self.conf.store, durability=self.conf.durability, shards=None, create=False)
        except WheelError as error:
            self.store_trouble = str(error)
            return None

    @cached_property
    def transport(self) -> str:
        """kombu's name (``driver_type``); empty where there is no such transport, or not its client library."""
        try:
            return str(self.app.connection_for_write().transport.driver_type)
        except (ImportError, KeyError, ValueError) as error:
            self.broker_trouble = f"broker_url names no transport that can be loaded: {error}"
            return ""

    @cached_property
    def broker(self) -> Broker | None:
        """The edge, whose server has answered."""
        if not self.transport or refusal(self.transport):
            return None
        edge = None
        try:
            edge = broker_for(self.app, self.conf, "" if self.store is None else self.store.uuid)
            edge.depth(0)
        except (WheelError, ImportError, ValueError) as error:
            self.broker_trouble = str(error)
            if edge is not None:
                edge.close()
            return None
        return edge

    @property
    def redis(self) -> RedisBroker | None:
        """The edge, where it is that for Redis."""
        return cast("RedisBroker", self.broker) if self.transport == "redis" and self.broker else None

    @property
    def broker_name(self) -> str:
        """The broker's URL, without a password."""
        return str(self.app.connection_for_write().as_uri())

    @cached_property
    def shards(self) -> list[ShardStatus]:
        return [] if self.store is None else status_of(self.store, self.now_ms())

    def now_ms(self) -> int:
        return int(time.time() * 1_000)

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        for opened in (vars(self).get("store"), vars(self).get("broker")):
            if opened is not None:
                opened.close()
