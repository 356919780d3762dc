"""Fills a store past the engine, as the holder of a shard: pending rows, rejected rows and settlements."""

from __future__ import annotations

import itertools
import json
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from celery_wheel.store.model import (
    HOUR_MS,
    ORIGIN,
    SHARD_BITS,
    STOPPED,
    Batch,
    Change,
    LaneState,
    Message,
    Move,
    Outcome,
    Position,
    StoredMessage,
    TallyKey,
)
from celery_wheel.store.ports import Store
from tests.benchmarks.letters import BODY_BYTES, KINDS, arguments, body_of, repr_of

NOW = 1_800_000_000_000 // HOUR_MS * HOUR_MS
LEASE_MS = 3_000

_PLACE = {"exchange": "", "exchange_type": "direct", "routing_key": "celery", "priority": None, "key": None}
_EMPTY = {"expires_ms": None, "queue_expires_ms": None, "headers": b"{}", "properties": b"{}", "body": b"[[], {}, {}]"}
_MESSAGE: dict[str, Any] = {"task": "bench.task", "queue": "celery", "created_ms": NOW, **_PLACE, **_EMPTY}


#: Headers and properties of a delayed message beside its ids, as they are in the store.
_HEADERS: dict[str, Any] = {
    **{"lang": "py", "shadow": None, "eta": None, "expires": None, "group": None, "group_index": None, "retries": 0},
    **{"timelimit": [None, None], "parent_id": None, "argsrepr": "()", "origin": "gen1@shop", "ignore_result": None},
    **{"replaced_task_nesting": 0, "stamped_headers": None, "stamps": {}},
}
_PROPERTIES = {
    **{"content_type": "application/json", "content_encoding": "utf-8", "delivery_mode": 2, "priority": 0},
    "reply_to": "c68e94f7-3556-3c13-96b3-fcef757b2937",
}


def realistic(rng: Random, size: int = BODY_BYTES, names: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield without end the parts of messages as Celery makes them, for ``Filler.row``.

    Args:
        size: bytes of arguments.
        names: of tasks, in the queues of ``KINDS``.
    """
    kinds = [(name, KINDS[n % len(KINDS)][1]) for n, name in enumerate(names)] or KINDS
    for task, queue in itertools.cycle(kinds):
        found, name = arguments(rng, size), str(uuid.UUID(int=rng.getrandbits(128), version=4))
        headers = {**_HEADERS, "task": task, "id": name, "root_id": name, "kwargsrepr": repr_of(found)}
        properties = {**_PROPERTIES, "correlation_id": name}
        yield {
            **{"task_id": name, "task": task, "queue": queue, "routing_key": queue, "body": body_of(found)},
            **{"headers": json.dumps(headers).encode(), "properties": json.dumps(properties).encode()},
        }


class Filler:
    def __init__(self, store: Store, shard: int = 0) -> None:
        self.store, self.shard = store, shard
        self._count = itertools.count(1)
        self._settled = ORIGIN
        epoch = store.acquire(shard, "bench", NOW, LEASE_MS)
        assert epoch is not None, "a new store has no other holder"
        self.epoch = epoch

    def row(self, due_ms: int, **parts: Any) -> StoredMessage:
        seq = self._seq()
        name = str(uuid.UUID(int=seq << 80 | 7 << 76))
        ids = {"envelope_id": name, "task_id": f"task-{name}", "eta_ms": due_ms}
        return StoredMessage(seq, 0, due_ms, seq, NOW, Message(**{**_MESSAGE, **ids, **parts}))

    def accept(self, rows: Sequence[StoredMessage]) -> None:
        self._apply(rows=rows, tally=_tally(rows, 1))

    def retire(self, rows: Sequence[StoredMessage], kind: str, at_ms: int) -> None:
        """Cancel or reject accepted rows."""
        moves = [Move(row.id, STOPPED, at_ms, self._seq()) for row in rows]
        outcomes = [Outcome(self._seq(), row.id, kind, "asked for", "somebody", at_ms) for row in rows]
        self._apply(moves=moves, outcomes=outcomes, tally=_tally(rows, -1))

    def settle(self, *to: Position, late_ms: int = 0) -> None:
        """Settle up to each of these positions, so long after its due time; all in one commit."""
        batches, total = [], Counter[TallyKey]()
        for position in to:
            left = self.store.summary(self.shard, 0, self._settled, position)
            at_ms = position.due_ms + late_ms
            batches.append(Batch(self._seq(), 0, self._settled, position, 1, left.bytes, at_ms))
            total.subtract(left.tally)
            self._settled = position
        self._apply(batches=batches, lanes=[LaneState(0, self._settled, self._settled)], tally=dict(total))

    def _seq(self) -> int:
        self._last = next(self._count) << SHARD_BITS | self.shard
        return self._last

    def _apply(self, **parts: Any) -> None:
        self.store.apply(self.shard, self.epoch, Change(seq=self._last, **parts))


def _tally(rows: Sequence[StoredMessage], sign: int) -> dict[TallyKey, int]:
    found = Counter(
        TallyKey(row.due_ms // HOUR_MS, row.message.queue or row.message.routing_key, row.message.task) for row in rows
    )
    return {key: sign * count for key, count in found.items()}
