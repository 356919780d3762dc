"""Ranges of numbers with about the same count of rows each: the parts of a read that Spark's tasks share."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, text

ROWS_A_PARTITION, MAX_PARTITIONS = 250_000, 32

#: Groups in which the rows of a shard's range are counted.
GROUPS = 256

_COUNTS = {"wheel_batch": "sum(count)", "wheel_outcome": "count(*)"}


def partition_count(rows: int, requested: int | None) -> int:
    return requested or max(1, min(MAX_PARTITIONS, -(-rows // ROWS_A_PARTITION)))


def split(after: int, upto: int, rows: int, requested: int | None) -> list[tuple[int, int]]:
    """Split (after, upto] into ranges of the same length."""
    step = max(1, -(-(upto - after) // partition_count(rows, requested)))
    return [(start, min(start + step, upto)) for start in range(after, upto, step)]


def event_ranges(
    table: str, connection: Connection, shard_ranges: dict[int, tuple[int, int]], requested: int | None
) -> Iterator[tuple[int, int, int]]:
    """Yield (shard, after, upto) of settlements or outcomes, without empty ranges."""
    groups = {shard: _groups(table, connection, shard, *range_) for shard, range_ in shard_ranges.items()}
    total = sum(count for shard_groups in groups.values() for _, count in shard_groups)
    most = max(1, -(-total // partition_count(total, requested)))
    for shard, shard_groups in groups.items():
        after, weight = shard_ranges[shard][0], 0
        for upto, count in shard_groups:
            weight += count
            if weight >= most:
                yield shard, after, upto
                after, weight = upto, 0
        if weight:
            yield shard, after, shard_ranges[shard][1]


def _groups(table: str, connection: Connection, shard: int, after: int, upto: int) -> list[tuple[int, int]]:
    """Return (last number, count of rows, at least 1) of each group of numbers, in order."""
    width = max(1, (upto - after) // GROUPS + 1)
    # Both names come from this module, and the width is an integer: nothing here is text from outside.
    counted = f"SELECT max(id), {_COUNTS[table]} FROM {table} WHERE shard = :shard AND id > :after AND id <= :upto"
    grouped = text(f"{counted} GROUP BY (id - :after) / {width} ORDER BY 1")
    rows = connection.execute(grouped, {"shard": shard, "after": after, "upto": upto})
    return [(int(end), max(1, int(count))) for end, count in rows]
