"""The offset hash: where each lane of a shard stands in Redis, and who may move it.

::

    wheel.offset.3                          one hash a namespace and shard, behind the global key prefix
      uuid      0192f…                    the store these positions belong to
      epoch     0000000000000000012       the holder; only it publishes, trims and sets
      seen      1700000000000             when it last adopted, by Redis's clock: twice a second
      lane:0    0000001700000000000:0000000000000000771
      failed:0  {"771": "key 'mail' holds a hash, not a list"}     of the lane's last chunk
      since:0   0000001699999999000:0000000000000000512 3 2304    a position; number and ids of rows after it
      set:0     0000000004213374422       serial of the last set_offset, see ``set_offset.lua``

Numbers are zero-padded to one width, so that comparing them as strings compares them as numbers:
Lua would make doubles of them, and a seq has 63 bits.

``failed`` travels with the offset: after a crash between the script and the settlement the next holder
still learns from ``adopt`` which rows their queues refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from celery_wheel.engine.port import BrokerOffset, Since
from celery_wheel.store.model import Position

#: Digits of 2**63 - 1.
WIDTH = 19

_LANE = "lane:"
_FAILED = "failed:"


def offset_key(prefix: str, namespace: str, shard: int) -> str:
    return f"{prefix}{namespace}.offset.{shard}"


def lane_field(lane: int) -> str:
    return f"{_LANE}{lane}"


def failed_field(lane: int) -> str:
    return f"{_FAILED}{lane}"


def serial_field(lane: int) -> str:
    return f"set:{lane}"


def encode_number(name: str, value: int) -> str:
    text = f"{value:0{WIDTH}d}"
    if value < 0 or len(text) > WIDTH:
        raise ValueError(f"{name} must be a number of at most {WIDTH} digits, got {value}")
    return text


def encode_position(position: Position) -> str:
    return f"{encode_number('due_ms', position.due_ms)}:{encode_number('seq', position.seq)}"


def decode_position(raw: bytes) -> Position:
    due_ms, _, seq = raw.partition(b":")
    return Position(int(due_ms), int(seq))


def encode_since(since: Since | None) -> str:
    return f"{encode_position(since.position)} {since.rows} {since.ids}" if since else ""


def decode_since(raw: bytes) -> Since | None:
    if not raw:
        return None
    position, rows, ids = raw.split(b" ")
    return Since(decode_position(position), int(rows), int(ids))


def decode_failed(raw: bytes) -> dict[int, str]:
    # "replace": a reason may quote a key that is no UTF-8, and must not hide the row it is about.
    return {int(row_id): reason for row_id, reason in json.loads(raw.decode("utf-8", "replace")).items()}


def read_lanes(fields: Sequence[bytes]) -> dict[int, BrokerOffset]:
    """The hash as HGETALL answers a script (name, value, name, value …), as offsets by lane."""
    values = {name.decode(): value for name, value in zip(fields[::2], fields[1::2], strict=True)}
    lanes = {int(name.removeprefix(_LANE)): value for name, value in values.items() if name.startswith(_LANE)}
    return {
        lane: BrokerOffset(
            decode_position(value),
            decode_failed(values.get(failed_field(lane), b"{}")),
            decode_since(values.get(f"since:{lane}", b"")),
        )
        for lane, value in lanes.items()
    }
