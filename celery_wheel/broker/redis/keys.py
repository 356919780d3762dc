"""The keys of the Redis edge: kombu's lists, sets and topics, and the wheel's one hash a namespace and shard.

::

    app:wheel.offset.3                    hash
      uuid      0192f…                    the store to which these positions belong
      epoch     0000000000000000012:2049.7  the holder's epoch and the store's instance: no other publishes, trims, sets
      address   /srv/wheel.sqlite3        the address of that store; place: the same with the host, for people
      seen      1700000000000             the holder's last sign of life, by Redis's clock: twice a second
      refused   /tmp/wheel.sqlite3 on a   the copy of the store that was last refused, if any; refused_at: when
      last      0000000000000000031       the number of this epoch's last chunk; serial: see ``change.lua``
      accepted  0000000000000004711       messages that the store has accepted: one that has fewer was rolled back
      lane:0    0000001700000000000:0000000000000000771
      failed:0  {"771": "key 'mail' holds a hash, not a list"}     of the lane's last chunk, for the next holder
      since:0   0000001699999999000:0000000000000000512 3 2304    a position; number and ids of rows after it

Numbers are zero-padded to one width, so that comparing them as strings compares them as numbers: Lua would convert them
to doubles, and a seq has 63 bits. Source: kombu 5.7 ``transport/redis.py`` and ``transport/virtual/base.py``. The
transport options must be the same in producers, workers and schedulers.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_wheel.engine.port import BrokerOffset, RangeChecksum
from celery_wheel.store.model import Position

#: kombu's own defaults.
PRIORITY_STEPS = (0, 3, 6, 9)
SEP = "\x06\x16"
#: Options that name the keys in which kombu keeps unacknowledged messages.
UNACKED = ("unacked", "unacked_index", "unacked_mutex")
BINDINGS = "_kombu.binding."


#: Digits of 2**63 - 1.
WIDTH = 19

_LANE = "lane:"


@dataclass(frozen=True, slots=True)
class Layout:
    prefix: str = ""
    sep: str = SEP
    priority_steps: tuple[int, ...] = PRIORITY_STEPS
    fanout_prefix: str = "/0."
    fanout_patterns: bool = True
    deadletter_queue: str | None = None
    unacked: frozenset[str] = frozenset(UNACKED)

    @classmethod
    def from_options(cls, options: Mapping[str, Any], db: int) -> Layout:
        """Read transport options as a kombu channel does."""
        fanout_prefix = options.get("fanout_prefix", True)
        template = fanout_prefix if isinstance(fanout_prefix, str) else "/{db}."
        return cls(
            prefix=options.get("global_keyprefix") or "",
            sep=options.get("sep", SEP),
            priority_steps=tuple(options.get("priority_steps", PRIORITY_STEPS)),
            fanout_prefix=template.format(db=db) if fanout_prefix else "",
            fanout_patterns=bool(options.get("fanout_patterns", True)),
            deadletter_queue=options.get("deadletter_queue"),
            unacked=frozenset(str(options.get(f"{name}_key", name)) for name in UNACKED),
        )

    def list_key(self, queue: str, priority: int | None) -> str:
        """Return the list for a message of this priority; as in kombu, 0 to 9, rounded down to a step."""
        steps = self.priority_steps
        step = steps[bisect(steps, max(0, min(priority or 0, 9))) - 1]
        return self._step_key(queue, step)

    def list_keys(self, queue: str) -> list[str]:
        """Return the lists of all priorities: when a queue expires, they expire together."""
        return [self._step_key(queue, step) for step in self.priority_steps]

    def binding_key(self, exchange: str) -> str:
        return f"{self.prefix}{BINDINGS}{exchange}"

    def is_kombus_own(self, queue: str) -> bool:
        """Whether kombu keeps another value under this name, so that a list there would stop its workers."""
        return queue in self.unacked or queue.startswith(BINDINGS)

    def topic(self, exchange: str, routing_key: str) -> str:
        """Return the PUB/SUB channel of a fanout exchange."""
        suffix = f"/{routing_key}" if routing_key and self.fanout_patterns else ""
        return f"{self.prefix}{self.fanout_prefix}{exchange}{suffix}"

    def _step_key(self, queue: str, step: int) -> str:
        return f"{self.prefix}{queue}{self.sep}{step}" if step else f"{self.prefix}{queue}"


def offset_key(prefix: str, namespace: str, shard: int) -> str:
    return f"{prefix}{namespace}.offset.{shard}"


def lane_fields(lane: int) -> tuple[str, str, str]:
    """Return the fields of a lane: its offset, the failed rows of its last chunk, its ``RangeChecksum``."""
    return f"{_LANE}{lane}", f"failed:{lane}", f"since:{lane}"


def lane_values(lane: int, offset: Position) -> list[str]:
    """Return the fields of a lane with their values, for an offset whose chunk had no failed rows."""
    values = encode_position(offset), "{}", ""
    return [text for pair in zip(lane_fields(lane), values, strict=True) for text in pair]


def encode_number(name: str, value: int) -> str:
    text = f"{value:0{WIDTH}d}"
    if value < 0 or len(text) > WIDTH:
        raise ValueError(f"{name} must be a number of at most {WIDTH} digits, got {value}")
    return text


def encode_fence(epoch: int, instance: str) -> str:
    """Return the epoch as it is compared in Redis: two copies of a store may count to the same number."""
    return f"{encode_number('epoch', epoch)}:{instance}"


def decode_fence(text: str) -> tuple[int, str]:
    epoch, _, instance = text.partition(":")
    return int(epoch or 0), instance


def encode_position(position: Position) -> str:
    return f"{encode_number('due_ms', position.due_ms)}:{encode_number('seq', position.seq)}"


def decode_position(raw: bytes) -> Position:
    due_ms, _, seq = raw.partition(b":")
    return Position(int(due_ms), int(seq))


def encode_since(since: RangeChecksum | None) -> str:
    return f"{encode_position(since.after)} {since.rows} {since.ids}" if since else ""


def decode_since(raw: bytes) -> RangeChecksum | None:
    if not raw:
        return None
    position, rows, ids = raw.split(b" ")
    return RangeChecksum(decode_position(position), int(rows), int(ids))


def decode_failed(raw: bytes) -> dict[int, str]:
    # "replace": a reason may quote a key that is no UTF-8, and must not hide its row.
    found = json.loads(raw.decode("utf-8", "replace")).items()
    return {int(row_id): reason for row_ids, reason in found for row_id in row_ids.split(".")}


def read_lanes(fields: Sequence[bytes]) -> dict[int, BrokerOffset]:
    """Return lane → offset; ``fields`` are the hash as HGETALL returns it in a script: name, value, name, value …"""
    values = {name.decode(): value for name, value in zip(fields[::2], fields[1::2], strict=True)}
    found: dict[int, BrokerOffset] = {}
    for name, value in values.items():
        if name.startswith(_LANE):
            lane = int(name.removeprefix(_LANE))
            _, failed, since = (values.get(field, b"") for field in lane_fields(lane))
            found[lane] = BrokerOffset(decode_position(value), decode_failed(failed or b"{}"), decode_since(since))
    return found
