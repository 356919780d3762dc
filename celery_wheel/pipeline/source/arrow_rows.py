"""Arrow batches as columns of a bulk load, with an id for each row that a repeated write gives again.

::

    with a key column      envelope = UUIDv5(namespace, value)                          the same in every load
    without                envelope = UUIDv7(begin of the load; load, part, row)        the same within a load's run

UUIDv7 sorts in the order of the rows, which keeps the store's index of ids append-friendly.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha1
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from celery_wheel.bulk_load.columns import BadRow, Columns

#: Namespace of the ids that are made from a key column.
NAMESPACE = UUID("0c3d2a52-7c0e-5f55-9d41-6f6b4f4f2c11")

#: Bits of a row's number, and of its part's number.
ROW_BITS, PART_BITS = 30, 18

_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
_TEXTS = ("task", "args", "kwargs", "queue", "key", "task_id")


def columns(batch: pa.RecordBatch, envelopes: list[str]) -> Columns:
    arrays = {name: batch.column(name) for name in batch.schema.names}
    ms = arrays.get("eta_ms")
    eta_us = _microseconds(arrays["eta"]) if ms is None else pc.multiply(ms.cast(pa.int64()), 1_000)
    texts = {name: arrays[name].to_pylist() for name in _TEXTS if name in arrays}
    return Columns(
        envelope=envelopes,
        task=texts.pop("task"),
        eta_us=eta_us.to_pylist(),
        eta=_as_text(eta_us),
        priority=arrays["priority"].to_pylist() if "priority" in arrays else None,
        expires=_expires(arrays["expires"]) if "expires" in arrays else None,
        **texts,
    )


def _microseconds(column: pa.Array) -> pa.Array:
    """Unix microseconds of timestamps; one without a zone is in UTC."""
    zone = column.type.tz
    return column.cast(pa.timestamp("us", tz=zone)).cast(pa.int64())


def _as_text(eta_us: pa.Array) -> list[str]:
    instants = eta_us.fill_null(0).to_numpy(zero_copy_only=False).astype("datetime64[us]")
    return [f"{text}+00:00" for text in np.datetime_as_string(instants).tolist()]


def _expires(column: pa.Array) -> list[Any]:
    if not pa.types.is_timestamp(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    return [None if at is None else datetime.fromtimestamp(at / 1e6, UTC) for at in _microseconds(column).to_pylist()]


def key_envelopes(column: pa.Array, first: int) -> list[str]:
    """Return an id for each value of the key column. ``first``: number of the first row, for BadRow."""
    if column.null_count:
        raise BadRow(f"row {first + column.to_pylist().index(None):,}: the key column must not be null")
    prefix, envelopes = NAMESPACE.bytes, []
    for value in column.cast(pa.string()).to_pylist():
        text = sha1(prefix + value.encode(), usedforsecurity=False).hexdigest()
        envelopes.append(f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:32]}")
    return envelopes


def row_envelopes(created_ms: int, load: int, part: int, first: int, count: int) -> list[str]:
    """Return an id for each of ``count`` rows, from the numbers of the load in the store, the part and the row."""
    if part >> PART_BITS or first + count >> ROW_BITS:
        raise BadRow(
            f"a load may have {1 << PART_BITS:,} partitions of {1 << ROW_BITS:,} rows; coalesce or repartition"
        )
    time, mixed = f"{created_ms:012x}", load & 0x3FFFFFF  # 26 bits
    prefix = f"{time[:8]}-{time[8:]}-7{mixed >> 14:03x}-{0x8000 | mixed & 0x3FFF:04x}-"
    return [f"{prefix}{part << ROW_BITS | n:012x}" for n in range(first, first + count)]
