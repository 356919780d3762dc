"""Drain a wheel into Celery's own queues (``to_broker``) or into a file, and import such a file into this wheel or
another.

``drain`` first accepts the messages in the wheel queues and the inbox; a second drain goes on where a killed one ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

from celery_wheel.broker import wheel_queue_name
from celery_wheel.broker.errors import broker_errors
from celery_wheel.broker.transport import broker_for
from celery_wheel.conf import Conf
from celery_wheel.engine.port import Broker
from celery_wheel.errors import SettingError
from celery_wheel.operations.drain.file import OUTCOMES, check_include, drain_to_file, earlier_header
from celery_wheel.operations.drain.hold import DrainResult, Progress, ShardHold, silent, total
from celery_wheel.operations.drain.import_file import ImportResult, ReportedLine, import_
from celery_wheel.operations.drain.to_broker import EtaBroker, ahead_ms, drain_to_broker
from celery_wheel.operations.stores import open_existing_store, recorded
from celery_wheel.store.audit_model import Operator
from celery_wheel.store.ports import FullStore

__all__ = [
    "DrainResult",
    "ImportResult",
    "Progress",
    "ReportedLine",
    "drain",
    "import_",
    "open_existing_store",
    "would_drain",
]


def drain(
    app: Any,
    store: FullStore,
    *,
    to_broker: bool = False,
    file: str | Path | None = None,
    include: Collection[str] = (),
    progress: Progress = silent,
    by: Operator | None = None,
) -> DrainResult:
    """Take all pending tasks out: to their own queues (``to_broker``), or to a file, with the recurring schedules.

    With ``to_broker`` schedules stay in the store: no queue can hold them. ``include`` "rejected": these tasks go
    to the file as well. ``by``: the person for the audit log; None: this process. A drain may be killed, and called
    again until it returns. Raises StoreUnusable while a scheduler holds a shard, StoreConflict where the store has
    another broker, BrokerError and StoreError where one does not answer, FileUnusable where another file is in the
    way.
    """
    if to_broker == (file is not None):
        raise SettingError("drain must have one of to_broker=True and file=…, got both or none")
    check_include(include)
    if include and to_broker:
        raise SettingError(f"include must be empty with to_broker=True, got {sorted(include)}: no queue accepted them")
    done = DrainResult()
    if file is None:
        edge = cast(Broker, EtaBroker(broker_for(app, Conf(app), store)))
        with ShardHold(app, store, edge, ahead_ms()) as hold, recorded(store, "drain", by, to="broker") as counts:
            drain_to_broker(hold, done, progress)
            counts |= _counts(done)
    else:
        done.file = Path(file)
        header = earlier_header(done.file, store.uuid)
        with ShardHold(app, store) as hold, recorded(store, "drain", by, to=str(file)) as counts:
            drain_to_file(hold, done.file, header, include, done, progress)
            counts |= _counts(done)
    done.left = total(store, store.handover.count_pending)
    done.schedules_left = total(store, store.handover.count_schedules)
    done.outcomes = _outcomes(store)
    return done


def _counts(done: DrainResult) -> dict[str, int]:
    return {name: getattr(done, name) for name in ("moved", "due", "rejected", "schedules")}


def would_drain(app: Any, store: FullStore) -> DrainResult:
    """Count the tasks that a drain would find. Nothing is changed; running schedulers change the counts meanwhile."""
    namespace, counts = Conf(app).namespace, Counter[str]()
    for shard in range(store.shards):
        for key, count in store.pending(shard).items():
            counts[key.queue] += count
    return DrainResult(
        moved=total(store, store.handover.count_pending),
        schedules_left=total(store, store.handover.count_schedules),
        outcomes=_outcomes(store),
        dry_run=True,
        in_queues=_in_queues(app, [wheel_queue_name(namespace, shard) for shard in range(store.shards)]),
        in_inbox=store.handover.count_inbox(),
        by_queue=dict(counts),
    )


def _outcomes(store: FullStore) -> dict[str, int]:
    counts = {kind: total(store, store.handover.count_stopped, (kind,)) for kind in OUTCOMES}
    return {kind: count for kind, count in counts.items() if count}


def _in_queues(app: Any, names: list[str]) -> int:
    """Count the messages in the wheel queues, as far as the transport counts them."""
    count = 0
    with app.connection_for_write() as connection, broker_errors(connection):
        for name in names:
            with connection.channel() as channel:
                try:
                    count += int(channel.queue_declare(name, passive=True).message_count)
                except connection.channel_errors:  # the queue does not exist: no message was ever sent to it
                    continue
    return count
