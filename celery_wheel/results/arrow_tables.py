"""Tables of a job's results as Arrow tables in checked types, with instants as Unix milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from celery_wheel.errors import FileUnusable
from celery_wheel.results.reader import JobResults

#: A week of 1,200 tasks and queues by the hour, or a month of four queues by the minute. They take about 100 MB.
MAX_ROWS = 200_000
#: Names that a filter offers.
MAX_NAMES = 200

TEXT, WHOLE, REAL, INSTANT = pa.string(), pa.int64(), pa.float64(), pa.timestamp("ms", tz="UTC")


def read_typed(results: JobResults, name: str, types: Mapping[str, Any], *, last: bool = False) -> tuple[pa.Table, int]:
    """Return (the first or last ``MAX_ROWS`` rows of a table; their total). Raises FileUnusable for other types."""
    table, total = results.read_rows(name, list(types), MAX_ROWS, last=last)
    try:
        table = table.select(list(types)).cast(pa.schema(types.items()), safe=False)
        for index, (column, type_) in enumerate(types.items()):
            if type_ == INSTANT:
                table = table.set_column(index, column, table[column].cast(WHOLE))
    except (pa.ArrowException, ValueError) as error:
        message = f"{results.folder} has a table {name!r} of other types: {error}; run {results.job} again"
        raise FileUnusable(message) from error
    return table, total


def filter_by(table: pa.Table, column: str, name: str | None) -> pa.Table:
    """Return the rows with this name; all rows if it is None."""
    return table if name is None else table.filter(pc.equal(table[column], name))


def distinct_names(column: pa.ChunkedArray) -> list[str]:
    return sorted(name for name in column.unique().to_pylist() if name is not None)[:MAX_NAMES]
