"""Rows of a table, of the types that the figures need; instants as Unix milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from celery_wheel.errors import FileUnusable
from celery_wheel.pipeline.results import Results

#: A week of 1,200 tasks and queues by the hour; a month by the minute of four queues. They take about 100 MB.
ROWS = 200_000
#: Names that a filter offers.
NAMES = 200

TEXT, WHOLE, REAL, INSTANT = pa.string(), pa.int64(), pa.float64(), pa.timestamp("ms", tz="UTC")


def rows(results: Results, name: str, types: Mapping[str, Any], *, last: bool = False) -> tuple[pa.Table, int]:
    """(the first ``ROWS`` rows of a table, or its last ones; how many it has). Raises FileUnusable for other types."""
    found, of = results.piece(name, list(types), ROWS, last=last)
    try:
        found = found.select(list(types)).cast(pa.schema(types.items()), safe=False)
        for at, (column, type_) in enumerate(types.items()):
            if type_ == INSTANT:
                found = found.set_column(at, column, found[column].cast(WHOLE))
    except (pa.ArrowException, ValueError) as error:
        message = f"{results.folder} has a table {name!r} of other types: {error}; run {results.job} again"
        raise FileUnusable(message) from error
    return found, of


def named(found: pa.Table, column: str, name: str | None) -> pa.Table:
    """The rows that have this name; all, if it is None."""
    return found if name is None else found.filter(pc.equal(found[column], name))


def names(column: pa.ChunkedArray) -> list[str]:
    return sorted(name for name in column.unique().to_pylist() if name is not None)[:NAMES]
