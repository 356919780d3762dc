"""``drain``: the operation as the command line and others call it; see the folder's header."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from celery_wheel.broker import broker_for
from celery_wheel.broker.faults import broker_errors
from celery_wheel.broker.names import wheel_queue_name
from celery_wheel.conf import Conf
from celery_wheel.engine.port import Broker
from celery_wheel.errors import SettingError
from celery_wheel.leaving.hold import Holding
from celery_wheel.leaving.progress import Progress, silent
from celery_wheel.leaving.to_broker import EtaBroker, ahead_ms, hand_over
from celery_wheel.leaving.to_file import earlier, write_out
from celery_wheel.store import open_store
from celery_wheel.store.ports import FullStore

#: What may be taken along that does not wait, but rests.
SET_ASIDE = ("rejected", "parked")


@dataclass(slots=True)
class Drained:
    """What a drain did, or would do: ``moved`` is what waits then, and ``in_queues`` and ``in_inbox`` come to it.

    ``moved``: tasks that wait elsewhere now. ``due``: tasks that were due anyway and left as ever. ``rejected``: tasks
    that the broker would not have, or that could not be read. ``taken_in``: of all these, those that were not in the
    store yet. ``set_aside``: tasks that rest in the store, by kind, and stay there. ``left``: tasks that wait still.
    """

    moved: int = 0
    due: int = 0
    rejected: int = 0
    taken_in: int = 0
    left: int = 0
    set_aside: dict[str, int] = field(default_factory=dict)
    file: Path | None = None
    in_file: int = 0  #: lines; those of an earlier drain that was killed included
    resumed: bool = False  #: the file was there, whole, and what it has was laid to rest
    gone: int = 0  #: resumed: tasks in the file that a scheduler has sent since it was written
    dry_run: bool = False
    in_queues: int = 0
    in_inbox: int = 0
    by_queue: dict[str, int] = field(default_factory=dict)


def open_for_leaving(app: Any) -> FullStore:
    """The app's store, taken as it is. The caller closes it."""
    conf = Conf(app)
    return open_store(conf.store, durability=conf.durability, shards=None, create=False, lease_ms=conf.lease_ms)


def drain(
    app: Any,
    store: FullStore,
    *,
    to_broker: bool = False,
    file: str | Path | None = None,
    set_aside: Collection[str] = (),
    progress: Progress = silent,
) -> Drained:
    """Let everything that waits wait elsewhere: in the tasks' own queues (``to_broker``), or in a file.

    Args:
        set_aside: "rejected" and "parked" tasks go to the file as well.
        progress: called now and then, in this thread.

    May be killed, and called again until it returns. Raises StoreUnusable while a scheduler holds a shard, BrokerError
    and StoreError where one does not answer, FileUnusable where another file is in the way.
    """
    if to_broker == (file is not None):
        raise SettingError("drain must be given one of to_broker=True and file=…, got both or none")
    if unknown := set(set_aside) - set(SET_ASIDE):
        raise SettingError(f"set_aside must be among {SET_ASIDE}, got {sorted(unknown)}")
    if set_aside and to_broker:
        raise SettingError(f"set_aside must be empty with to_broker=True, got {sorted(set_aside)}: no queue took them")
    done = Drained()
    if file is None:
        edge = cast(Broker, EtaBroker(broker_for(app, Conf(app), store.uuid)))
        with Holding(app, store, edge, ahead_ms()) as holding:
            found = hand_over(holding, progress)
            done.moved, done.due, done.rejected, done.taken_in = found.moved, found.due, found.rejected, found.taken_in
    else:
        header = earlier(Path(file), store.uuid)
        with Holding(app, store) as holding:
            written = write_out(holding, Path(file), header, set_aside, progress)
        done.file, done.in_file, done.moved = Path(file), written.lines, written.moved
        done.taken_in, done.rejected = written.taken_in, written.rejected
        done.resumed, done.gone = written.resumed, written.gone
    done.left = sum(store.handover.count_waiting(shard) for shard in range(store.shards))
    done.set_aside = _resting(store)
    return done


def would_drain(app: Any, store: FullStore) -> Drained:
    """Count what a drain would find. Nothing is changed; schedulers may run, and change the figures meanwhile."""
    conf = Conf(app)
    counts = Counter[str]()
    for shard in range(store.shards):
        for key, count in store.pending(shard).items():
            counts[key.queue] += count
    return Drained(
        moved=sum(store.handover.count_waiting(shard) for shard in range(store.shards)),
        set_aside=_resting(store),
        dry_run=True,
        in_queues=_in_queues(app, [wheel_queue_name(conf.namespace, shard) for shard in range(store.shards)]),
        in_inbox=store.handover.count_inbox(),
        by_queue=dict(counts),
    )


def _resting(store: FullStore) -> dict[str, int]:
    return {
        kind: count
        for kind in SET_ASIDE
        if (count := sum(store.handover.count_set_aside(shard, (kind,)) for shard in range(store.shards)))
    }


def _in_queues(app: Any, names: list[str]) -> int:
    """Messages in the wheel queues, as far as the transport counts them."""
    count = 0
    with app.connection_for_write() as connection, broker_errors(connection):
        for name in names:
            with connection.channel() as channel:
                try:
                    count += int(channel.queue_declare(name, passive=True).message_count)
                except connection.channel_errors:  # it is not there: nothing was ever sent to it
                    continue
    return count
