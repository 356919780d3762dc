"""The installation that the checks examine, and their findings.

Store and broker are opened when first used. One that cannot be opened is None; ``store_trouble`` and
``broker_trouble`` have the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

from celery_wheel.broker.errors import url_of
from celery_wheel.broker.transport import UNSUPPORTED, broker_for, transport_of
from celery_wheel.conf import Conf
from celery_wheel.engine.port import Broker
from celery_wheel.errors import SettingError, WheelError
from celery_wheel.operations.stores import open_existing_store
from celery_wheel.overview import ShardStatus, read_overview
from celery_wheel.store.ports import FullStore
from celery_wheel.values.format import printable
from celery_wheel.values.instants import now_ms

if TYPE_CHECKING:
    from celery_wheel.broker.redis.edge import RedisBroker


class Grade(StrEnum):
    OK = "ok"
    NOTE = "note"  #: right for some installations; its remedy says when. It does not fail ``doctor``
    WARNING = "warning"  #: something may be lost or late
    ERROR = "error"  #: nothing is dispatched, or nothing can be


@dataclass(frozen=True, slots=True)
class Finding:
    """``about`` names the subject and stays the same from version to version; ``text`` is for people."""

    about: str
    grade: Grade
    text: str
    remedy: str = ""

    def spelled(self, conf: Conf) -> Finding:
        """Return the finding with the names of settings as the app's configuration has them."""
        return replace(self, text=conf.spelled(self.text), remedy=conf.spelled(self.remedy))


def _finding(grade: Grade, about: str, text: str, remedy: str = "") -> Finding:
    return Finding(about, grade, printable(text, 1_000), remedy)


#: Texts contain names that came with messages, so they are escaped, and cut.
ok, note, warning, error = (partial(_finding, grade) for grade in Grade)


def split_remedy(message: str) -> tuple[str, str]:
    """Return ("state; consequence", the remedy as a sentence) of an error's message; it may have no remedy."""
    problem, _, remedy = message.rpartition("; ")
    end = "" if ": " in remedy else "."  # a command ends as it is typed
    return (problem, f"{remedy[:1].upper()}{remedy[1:]}{end}") if problem else (message, "")


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
        if not self.transport or self.transport in UNSUPPORTED:
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
        return cast("RedisBroker", self.broker) if self.transport == "redis" and self.broker else None

    @cached_property
    def redis_settings(self) -> dict[str, str | None] | None:
        """The settings that decide whether a Redis keeps its data, None where it hides one; None for another broker."""
        return None if self.redis is None else self.redis.info()

    @property
    def broker_name(self) -> str:
        """The broker's URL, without its password."""
        return url_of(self.app.connection_for_write())

    @cached_property
    def shards(self) -> list[ShardStatus]:
        return [] if self.store is None else read_overview(self.store, now_ms()).shards

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, *_: object) -> None:
        for opened in (vars(self).get("store"), vars(self).get("broker")):
            if opened is not None:
                opened.close()
