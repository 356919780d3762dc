"""Fills a store past the engine, as the holder of a shard: pending rows, rejected rows and settlements.

``fill_days`` writes the most of them by SQL: a hundred million in half an hour, on two busy cores.
"""

from __future__ import annotations

import itertools
import json
import time
import uuid
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from random import Random
from typing import Any

from sqlalchemy import create_engine

from celery_wheel.console.output import progress
from celery_wheel.store import open_store
from celery_wheel.store.model import (
    DAY_MS,
    HOUR_MS,
    ORIGIN,
    SHARD_BITS,
    LaneState,
    Position,
    StoredMessage,
    TallyKey,
)
from celery_wheel.store.sql.schema import timer, total
from tests.benchmarks.letters import BODY_BYTES, KINDS, arguments, body_of, repr_of
from tests.kit.holder import Holder, hour_of

#: Rows in a commit.
GROUP = 5_000

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
    """Yield without end the parts of messages with ``size`` bytes of arguments; ``names`` are those of tasks."""
    kinds = [(name, KINDS[n % len(KINDS)][1]) for n, name in enumerate(names)] or KINDS
    for task, queue in itertools.cycle(kinds):
        found, name = arguments(rng, size), _task_id(rng)
        headers = {**_HEADERS, "task": task, "id": name, "root_id": name, "kwargsrepr": repr_of(found)}
        properties = {**_PROPERTIES, "correlation_id": name}
        yield {
            **{"task_id": name, "task": task, "queue": queue, "routing_key": queue, "body": body_of(found)},
            **{"headers": json.dumps(headers).encode(), "properties": json.dumps(properties).encode()},
        }


def small(rng: Random) -> Iterator[dict[str, Any]]:
    """Yield without end the parts of messages without arguments, of 100 tasks in 20 queues."""
    kinds = [{"task": f"bench.tasks.task_{number}", "queue": f"queue_{number % 20}"} for number in range(100)]
    while True:
        yield {**rng.choice(kinds), "task_id": _task_id(rng)}


def _task_id(rng: Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


class Filler(Holder):
    """A holder whose changes have the counts that the engine keeps."""

    _settled = ORIGIN

    def skip(self, count: int) -> None:
        """Leave out so many seqs, of rows that were written past it."""
        self._count += count

    def add(self, rows: Sequence[StoredMessage]) -> None:
        self.apply(rows=rows, tally=_tally(rows, 1))

    def retire(self, rows: Sequence[StoredMessage], kind: str, at_ms: int) -> None:
        moves, outcomes = [self.stop(row, at_ms) for row in rows], [self.outcome(row.id, kind, at_ms) for row in rows]
        self.apply(moves=moves, outcomes=outcomes, tally=_tally(rows, -1))

    def settle_upto(self, to: Position) -> None:
        """Settle all that is due up to there, from the start of the lane or from the last settlement on."""
        left = self.store.summary(self.shard, 0, self._settled, to)
        settlement = self.settlement(self._settled, to, at_ms=to.due_ms, weight=left.bytes)
        tally = {key: -n for key, n in left.tally.items()}
        self.apply(settlements=[settlement], lanes=[LaneState(0, to, to)], tally=tally)
        self._settled = to


def fill_days(url: str, a_day: int, days: int, rng: Random) -> int:
    """Write so many pending rows without arguments that are due at random tomorrow, and copy them to the days after it.

    A copy has a random task id of its own; its envelope id, position and seq are in the order of the due times. The
    index of task ids is built at the end: three times as fast as the engine's commits.
    Returns when the first row is due at the earliest, Unix milliseconds.
    """
    tally, start_ms, parts = Counter[TallyKey](), (time.time_ns() // 1_000_000 // DAY_MS + 1) * DAY_MS, small(rng)
    with closing(open_store(url, durability="memory")) as store, progress("fill", days) as bar:
        holder = Filler(store, 0)
        for start in range(0, a_day, GROUP):
            dues_ms = sorted(start_ms + rng.randrange(DAY_MS) for _ in range(min(GROUP, a_day - start)))
            rows = [holder.row(due_ms, **next(parts)) for due_ms in dues_ms]
            holder.add(rows)
            tally += Counter(map(hour_of, rows))
        [by_task] = [index for index in timer.indexes if index.name == "wheel_timer_task"]
        engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        with engine.begin() as connection:
            by_task.drop(connection)
        for day in range(1, days):
            bar(0, done=day)
            with engine.begin() as connection:
                connection.exec_driver_sql(_copy(engine.dialect.name, day, start_ms, holder.highest_seq))
            holder.skip(a_day)
            hours = day * DAY_MS // HOUR_MS
            holder.apply(tally={key._replace(hour=key.hour + hours): count for key, count in tally.items()})
        with engine.begin() as connection:
            connection.exec_driver_sql(f"UPDATE {total.name} SET pending = pending * {days} WHERE kind = 'route'")
            by_task.create(connection)
        engine.dispose()
        store.release(holder.shard, holder.epoch)
    return start_ms


def _copy(dialect: str, day: int, start_ms: int, seq: int) -> str:
    next_seq = f"{seq} + (row_number() OVER (ORDER BY due_ms, seq)) * {1 << SHARD_BITS}"
    envelope_id, task_id = {
        "sqlite": (f"CAST(char({day}) || substr(envelope_id, 2) AS BLOB)", "randomblob(16)"),
        "postgresql": (f"set_byte(envelope_id, 0, {day})", "uuid_send(gen_random_uuid())"),
    }[dialect]
    others = {"due_ms": f"due_ms + {day * DAY_MS}", "eta_ms": f"eta_ms + {day * DAY_MS}"}
    others |= {"id": next_seq, "seq": next_seq, "envelope_id": envelope_id, "task_id": task_id}
    names = [f'"{column.name}"' for column in timer.columns]
    values = [others.get(column.name, f'"{column.name}"') for column in timer.columns]
    return (
        f"INSERT INTO {timer.name} ({', '.join(names)}) SELECT {', '.join(values)} FROM {timer.name} "
        f"WHERE due_ms < {start_ms + DAY_MS} ORDER BY due_ms, seq"
    )


def _tally(rows: Sequence[StoredMessage], sign: int) -> dict[TallyKey, int]:
    return {key: sign * count for key, count in Counter(map(hour_of, rows)).items()}


def fill(
    url: str,
    count: int,
    parts: Iterator[dict[str, Any]],
    rng: Random,
    *,
    shards: int = 1,
    days: tuple[int, int] = (1, 30),
) -> array[int]:
    """Write pending rows, so many days ahead at random, and leave the shards; returns the due times as written."""
    now_ms = time.time_ns() // 1_000_000
    etas = array("q", (now_ms + rng.randrange(days[0] * DAY_MS, days[1] * DAY_MS) for _ in range(count)))
    with closing(open_store(url, durability="memory", shards=shards)) as store, progress("fill", count) as bar:
        holders = [Filler(store, shard) for shard in range(shards)]
        group = min(GROUP, -(-count // shards))
        for start, holder in zip(range(0, count, group), itertools.cycle(holders), strict=False):
            holder.add([holder.row(due_ms, **next(parts)) for due_ms in etas[start : start + group]])
            bar(0, done=start)
        for holder in holders:
            store.release(holder.shard, holder.epoch)
    return etas
