"""How what is to be read is shared out to tasks: ranges of numbers with about as many rows each."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, text

ROWS_A_PIECE, MOST_PIECES = 250_000, 32

#: Of a shard's range so many groups are counted.
GROUPS = 256

_COUNTS = {"wheel_batch": "sum(count)", "wheel_outcome": "count(*)"}


def pieces_for(rows: int, asked: int | None) -> int:
    return asked or max(1, min(MOST_PIECES, -(-rows // ROWS_A_PIECE)))


def split(after: int, upto: int, rows: int, asked: int | None) -> list[tuple[int, int]]:
    """(after, upto] in ranges of the same length."""
    step = max(1, -(-(upto - after) // pieces_for(rows, asked)))
    return [(start, min(start + step, upto)) for start in range(after, upto, step)]


def ranges_of(
    table: str, connection: Connection, numbered: dict[int, tuple[int, int]], asked: int | None
) -> Iterator[tuple[int, int, int]]:
    """Settlements or outcomes: (shard, after, upto), none where there is nothing."""
    groups = {shard: _groups(table, connection, shard, *range_) for shard, range_ in numbered.items()}
    total = sum(count for found in groups.values() for _, count in found)
    most = max(1, -(-total // pieces_for(total, asked)))
    for shard, found in groups.items():
        after, weight = numbered[shard][0], 0
        for upto, count in found:
            weight += count
            if weight >= most:
                yield shard, after, upto
                after, weight = upto, 0
        if weight:
            yield shard, after, numbered[shard][1]


def _groups(table: str, connection: Connection, shard: int, after: int, upto: int) -> list[tuple[int, int]]:
    """Where each group of numbers ends, in order, and how many rows it stands for: at least one."""
    width = max(1, (upto - after) // GROUPS + 1)
    # Both names are of this module, and the width is a number.
    counted = f"SELECT max(id), {_COUNTS[table]} FROM {table} WHERE shard = :shard AND id > :after AND id <= :upto"
    grouped = text(f"{counted} GROUP BY (id - :after) / {width} ORDER BY 1")
    rows = connection.execute(grouped, {"shard": shard, "after": after, "upto": upto})
    return [(int(end), max(1, int(count))) for end, count in rows]
