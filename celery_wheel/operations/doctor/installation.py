"""The installation that the checks examine: an app with its settings, store and broker, each opened when first used.

A store or a broker that cannot be opened is None; ``store_trouble`` and ``broker_trouble`` have the reason.
"""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from celery_wheel.broker import broker_for, transport_of, unsupported_reason
from celery_wheel.conf import Conf
from celery_wheel.engine.port import Broker
from celery_wheel.errors import SettingError, WheelError
from celery_wheel.operations.access import open_existing_store
from celery_wheel.overview import ShardStatus, read_overview
from celery_wheel.store.ports import FullStore

if TYPE_CHECKING:
    from celery_wheel.broker.redis.edge import RedisBroker


class Installation:
    """A context manager that closes the store and the broker."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.conf = Conf(app)
        self.store_trouble = ""
        self.broker_trouble = ""

    @cached_property
    def store(self) -> FullStore | None:
        try:
            return open_existing_store(self.app)
        except WheelError as error:
            self.store_trouble = str(error)
            return None

    @cached_property
    def transport(self) -> str:
        """The ``driver_type`` of kombu's transport; empty where the transport or its client library does not exist."""
        try:
            return transport_of(self.app)
        except SettingError as error:
            self.broker_trouble = str(error)
        except (KeyError, ValueError) as error:
            self.broker_trouble = f"broker_url names no transport that can be loaded: {error}"
        return ""

    @cached_property
    def broker(self) -> Broker | None:
        """The broker's edge, after its server has answered."""
        if not self.transport or unsupported_reason(self.transport):
            return None
        edge = None
        try:
            edge = broker_for(self.app, self.conf, self.store)
            edge.depth(0)
        except (WheelError, ImportError, ValueError) as error:
            self.broker_trouble = str(error)
            if edge is not None:
                edge.close()
            return None
        return edge

    @property
    def redis(self) -> RedisBroker | None:
        """The broker's edge, where the broker is Redis."""
        return cast("RedisBroker", self.broker) if self.transport == "redis" and self.broker else None

    @property
    def broker_name(self) -> str:
        """The broker's URL, without its password."""
        return str(self.app.connection_for_write().as_uri())

    @cached_property
    def shards(self) -> list[ShardStatus]:
        return [] if self.store is None else read_overview(self.store, self.now_ms()).shards

    def now_ms(self) -> int:
        return int(time.time() * 1_000)

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, *_: object) -> None:
        for opened in (vars(self).get("store"), vars(self).get("broker")):
            if opened is not None:
                opened.close()
