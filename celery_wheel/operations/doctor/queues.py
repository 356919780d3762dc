"""The wheel queues in the broker: messages that no scheduler has accepted yet."""

from __future__ import annotations

from collections.abc import Iterator

from celery_wheel.engine.port import Broker
from celery_wheel.errors import BrokerError
from celery_wheel.operations.doctor.finding import Finding, error, ok, split_remedy, warning
from celery_wheel.operations.doctor.installation import Installation
from celery_wheel.operations.doctor.shards import START
from celery_wheel.overview import ShardStatus
from celery_wheel.store.model import Message, Unreadable
from celery_wheel.values.format import format_duration, printable

#: A scheduler reads its queue every 50 ms; a message that is older waits for a reason.
OLD_MS = 10_000


def check(site: Installation) -> Iterator[Finding]:
    if site.broker is None:
        return
    for one in site.shards:
        try:
            yield from _queue(site, site.broker, one)
        except BrokerError as trouble:
            yield error(_about(one), *split_remedy(str(trouble)))


def growth(site: Installation) -> Iterator[Finding]:
    """Yield a finding for each wheel queue with messages that no scheduler reads.

    Raises BrokerError when the broker does not answer.
    """
    for one in site.shards:
        if not one.live and site.broker is not None and (count := site.broker.depth(one.shard)):
            yield _unheld(one, count)


def _queue(site: Installation, broker: Broker, one: ShardStatus) -> Iterator[Finding]:
    count = broker.depth(one.shard)
    oldest = broker.oldest(one.shard) if count else None
    age_ms = site.now_ms() - oldest.created_ms if isinstance(oldest, Message) else None
    age = "" if age_ms is None else f", the oldest for {format_duration(max(0, age_ms))}"
    if not one.live and count:
        yield _unheld(one, count, age)
    elif age_ms is not None and age_ms > OLD_MS:
        yield warning(
            _about(one),
            f"{count:,} delayed tasks wait in the broker{age}: the holder of the shard does not accept them in time",
            "Read beat's log: the store is slow or full, or one shard is not enough (wheel_shards).",
        )
    else:
        yield ok(_about(one), f"{count:,} delayed tasks wait in the broker{age}")
    if age_ms is not None and -age_ms > site.conf.max_clock_skew_ms:
        yield warning(
            _about(one), f"a producer's clock is {format_duration(-age_ms)} ahead of this host's", "Check both clocks."
        )
    if isinstance(oldest, Unreadable):
        yield error(
            _about(one),
            f"its oldest message cannot be read and will be rejected: {printable(oldest.reason)}",
            "Let only celery-wheel send to this queue; update schedulers before producers.",
        )


def _unheld(one: ShardStatus, count: int, age: str = "") -> Finding:
    text = (
        f"{count:,} delayed tasks wait in the broker for shard {one.shard} of the wheel{age}, which no scheduler holds."
    )
    return warning(_about(one), text, START)


def _about(one: ShardStatus) -> str:
    return f"queue {one.shard}"
