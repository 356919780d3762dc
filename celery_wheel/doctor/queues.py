"""The wheel's queues in the broker: what producers sent and no scheduler has taken in yet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from celery_wheel.broker.envelope import HEADER, VERSION
from celery_wheel.doctor.finding import Finding, error, ok, warning
from celery_wheel.doctor.server import Server
from celery_wheel.doctor.shards import START
from celery_wheel.doctor.site import Site
from celery_wheel.errors import BrokerError
from celery_wheel.present import duration, seen
from celery_wheel.status import ShardStatus

#: A scheduler looks every 50 ms; what waits for longer waits for a reason.
OLD_MS = 10_000


def check(site: Site) -> Iterator[Finding]:
    if site.server is None:
        return
    for one in site.shards:
        try:
            yield from _queue(site, site.server, one)
        except BrokerError as trouble:
            yield error(_about(one), f"{trouble}.", "Start it, or correct broker_url.")


def growth(site: Site) -> Iterator[Finding]:
    """What waits for shards that nobody holds. Raises BrokerError when the broker does not answer."""
    for one in site.shards:
        if not one.live and site.server is not None and (count := site.server.waiting(one.shard)):
            yield _unheld(one, count)


def _queue(site: Site, server: Server, one: ShardStatus) -> Iterator[Finding]:
    count = server.waiting(one.shard)
    raw = server.oldest(one.shard) if count else None
    envelope = _envelope(raw)
    created_ms = envelope.get("created_ms")
    age_ms = site.now_ms() - created_ms if isinstance(created_ms, int) else None
    age = "" if age_ms is None else f", the oldest for {duration(max(0, age_ms))}"
    if not one.live and count:
        yield _unheld(one, count, age)
    elif age_ms is not None and age_ms > OLD_MS:
        yield warning(
            _about(one),
            f"{count:,} delayed tasks wait in the broker{age}: the holder of the shard does not take them in in time",
            "Look into beat's log: the store is slow or full, or there is more than one shard can take (wheel_shards).",
        )
    else:
        yield ok(_about(one), f"{count:,} delayed tasks wait in the broker{age}")
    if age_ms is not None and -age_ms > site.conf.max_clock_skew_ms:
        yield warning(
            _about(one), f"a producer's clock is {duration(-age_ms)} ahead of this host's", "Check both clocks."
        )
    if raw is not None:
        yield from _version(one, envelope.get("v"))


def _unheld(one: ShardStatus, count: int, age: str = "") -> Finding:
    text = (
        f"{count:,} delayed tasks wait in the broker for shard {one.shard} of the wheel{age}, which no scheduler holds."
    )
    return warning(_about(one), text, START)


def _version(one: ShardStatus, version: Any) -> Iterator[Finding]:
    if version == VERSION:
        yield ok(_about(one), f"its oldest message has an envelope of version {VERSION}, as this version reads it")
    elif type(version) is int and version > VERSION:
        yield error(
            _about(one),
            f"its oldest message has an envelope of version {version}, and this version reads {VERSION}: a scheduler "
            "of this version rejects what newer producers send",
            "Update celery-wheel where schedulers run, before producers.",
        )
    else:
        yield warning(
            _about(one),
            f"its oldest message has no envelope that can be read (version {seen(version)}): it will be rejected",
            "Only celery-wheel may send to this queue; `celery wheel rejected` shows the message and the reason then.",
        )


def _about(one: ShardStatus) -> str:
    return f"queue {one.shard}"


def _envelope(raw: bytes | None) -> dict[str, Any]:
    """The envelope's fields as they are; nothing where it has none."""
    if raw is not None:
        with suppress(ValueError, RecursionError, KeyError, TypeError):  # whoever sent this, it is only looked at
            found = json.loads(raw)["headers"][HEADER]
            return found if isinstance(found, dict) else {}
    return {}
