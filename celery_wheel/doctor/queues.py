"""The wheel's queues in the broker: what producers sent and no scheduler has taken in yet."""

from __future__ import annotations

from collections.abc import Iterator

from celery_wheel.doctor.finding import Finding, error, ok, warning
from celery_wheel.doctor.shards import START
from celery_wheel.doctor.site import Site
from celery_wheel.engine.port import Broker
from celery_wheel.errors import BrokerError
from celery_wheel.present import duration, seen
from celery_wheel.status import ShardStatus
from celery_wheel.store.model import Message, Unreadable

#: A scheduler looks every 50 ms; what waits for longer waits for a reason.
OLD_MS = 10_000


def check(site: Site) -> Iterator[Finding]:
    if site.broker is None:
        return
    for one in site.shards:
        try:
            yield from _queue(site, site.broker, one)
        except BrokerError as trouble:
            yield error(_about(one), f"{trouble}.", "Start it, or correct broker_url.")


def growth(site: Site) -> Iterator[Finding]:
    """What waits for shards that nobody holds. Raises BrokerError when the broker does not answer."""
    for one in site.shards:
        if not one.live and site.broker is not None and (count := site.broker.depth(one.shard)):
            yield _unheld(one, count)


def _queue(site: Site, broker: Broker, one: ShardStatus) -> Iterator[Finding]:
    count = broker.depth(one.shard)
    oldest = broker.oldest(one.shard) if count else None
    age_ms = site.now_ms() - oldest.created_ms if isinstance(oldest, Message) else None
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
    if isinstance(oldest, Unreadable):
        yield error(
            _about(one),
            f"its oldest message cannot be read and will be rejected: {seen(oldest.reason)}",
            "Only celery-wheel may send to this queue; update it where schedulers run before producers.",
        )


def _unheld(one: ShardStatus, count: int, age: str = "") -> Finding:
    text = (
        f"{count:,} delayed tasks wait in the broker for shard {one.shard} of the wheel{age}, which no scheduler holds."
    )
    return warning(_about(one), text, START)


def _about(one: ShardStatus) -> str:
    return f"queue {one.shard}"
