"""Arrow batches as columns of a bulk load, with an id for each row that is the same whenever the row is written again.

::

    with a key column      envelope = UUIDv5(namespace, value)                      the same in whatever load it comes
    without                envelope = UUIDv7(when the load was begun; load, part, row)    the same within a load's run

The latter sorts as the rows come, which is what the store's index of them wants.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha1
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from celery_wheel.bulk.columns import BadRow, Columns

#: Of the ids that are made of a key column's values.
NAMESPACE = UUID("0c3d2a52-7c0e-5f55-9d41-6f6b4f4f2c11")

#: Bits of a row's number and of its part's.
ROW_BITS, PART_BITS = 30, 18

_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
_TEXTS = ("task", "args", "kwargs", "queue", "key", "task_id")


def columns(batch: pa.RecordBatch, envelopes: list[str]) -> Columns:
    given = {name: batch.column(name) for name in batch.schema.names}
    eta_us = _instants(given["eta"]) if "eta" in given else _of_ms(given["eta_ms"])
    texts = {name: given[name].to_pylist() for name in _TEXTS if name in given}
    return Columns(
        envelope=envelopes,
        task=texts.pop("task"),
        eta_us=eta_us.to_pylist(),
        eta=_as_text(eta_us),
        priority=given["priority"].to_pylist() if "priority" in given else None,
        expires=_expires(given["expires"]) if "expires" in given else None,
        **texts,
    )


def _instants(column: pa.Array) -> pa.Array:
    """Microseconds; what has no zone is UTC's."""
    zone = column.type.tz
    return column.cast(pa.timestamp("us", tz=zone)).cast(pa.int64())


def _of_ms(column: pa.Array) -> pa.Array:
    return pc.multiply(column.cast(pa.int64()), 1_000)


def _as_text(eta_us: pa.Array) -> list[str]:
    instants = eta_us.fill_null(0).to_numpy(zero_copy_only=False).astype("datetime64[us]")
    return [f"{text}+00:00" for text in np.datetime_as_string(instants).tolist()]


def _expires(column: pa.Array) -> list[Any]:
    if not pa.types.is_timestamp(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    return [None if at is None else datetime.fromtimestamp(at / 1e6, UTC) for at in _instants(column).to_pylist()]


def by_key(column: pa.Array, first: int) -> list[str]:
    """``first``: number of the first row, for BadRow."""
    if column.null_count:
        raise BadRow(f"row {first + column.to_pylist().index(None):,}: the key column must not be null")
    prefix, found = NAMESPACE.bytes, []
    for value in column.cast(pa.string()).to_pylist():
        text = sha1(prefix + value.encode(), usedforsecurity=False).hexdigest()
        found.append(f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:32]}")
    return found


def by_place(created_ms: int, load: int, part: int, first: int, count: int) -> list[str]:
    """``load``: its number in the store; ``part`` and ``first``: where in it the rows stand."""
    if part >> PART_BITS or first + count >> ROW_BITS:
        raise BadRow(
            f"a load may have {1 << PART_BITS:,} partitions of {1 << ROW_BITS:,} rows; coalesce or repartition"
        )
    time, mixed = f"{created_ms:012x}", load & 0x3FFFFFF  # 26 bits
    prefix = f"{time[:8]}-{time[8:]}-7{mixed >> 14:03x}-{0x8000 | mixed & 0x3FFF:04x}-"
    return [f"{prefix}{part << ROW_BITS | n:012x}" for n in range(first, first + count)]
