"""``writeStream``: a stream of rows as bulk loads, one for each micro-batch, and each scheduled once.

::

    driver   plan      read the stream's loads: which are loaded, and the runs of open ones
    tasks    write     "orders" / query / number ─► join the load in its next run ─► ``parts``, as in a batch
    driver   commit    exactly the parts that Spark counts; loads of earlier micro-batches are forgotten
    driver   abort     the load stays open

Identity. The option ``batch`` names the stream. Spark tells a commit the number of the micro-batch alone, and a task
the query too, in the local properties of its context. The query's id lies in the checkpoint: a restart has the same,
and another checkpoint another. So a load is called ``orders/9b0c3d2a-…/41``, and a query that finds only loads of other
queries is refused: its checkpoint is new, and its rows may be those of the old one.

Once. Spark repeats a micro-batch, with the same rows, until the checkpoint has it.

    1. The load of a micro-batch is committed in one transaction, so all of its rows are visible, or none.
    2. A micro-batch up to the last one that is loaded is not written again, like that whose commit the checkpoint
       missed. Spark commits in order, so the loads of earlier ones need not be kept.
    3. A repeated execution plans anew and sees the open load. It joins in the next run, which fences all writers and
       the commit of the run before; parts and slices of the same rows are kept, and other parts are removed.
    4. Two drivers that plan at once have one run. The attempts of its parts fence each other, and the commit names
       its attempts, so that at most one of the two commits.

An aborted or killed load stays open because the restarted query repeats it. ``celery wheel loads --abort`` ends it
where no query will.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from celery_wheel.errors import SettingError
from celery_wheel.pipeline.source.parts import WrittenPart, find_app, now_ms, open_for_loading, part_results, write_part
from celery_wheel.pipeline.source.target import WriteTarget, read_target
from celery_wheel.pipeline.spark_errors import concise
from celery_wheel.store.ports import FullStore
from celery_wheel.store.store_model import BulkLoad
from celery_wheel.values.text import text_rule

#: Local properties of a task in a micro-batch.
QUERY, NUMBER = "sql.streaming.queryId", "streaming.sql.batchId"

_QUERY_AND_NUMBER = re.compile(r"([0-9a-f-]{36})/(\d+)").fullmatch

ANOTHER_QUERY = (
    "the stream {stream!r} was loaded by the query {others}, and this is the query {query}: its checkpoint is another, "
    "or was removed, so its rows may be scheduled already; nothing was written. Start the query with its earlier "
    "checkpoint; or load all that the new checkpoint reads as another stream: .option('batch', '{stream}-2'), where "
    "option key prevents that a row of the earlier one is scheduled again"
)


class MicroBatch(NamedTuple):
    """A micro-batch of a query, with the number that Spark calls its batch id, or its epoch."""

    query: str
    number: int


def make_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> WheelStreamWriter:
    """Read the loads of the stream. Raises SettingError or StoreUnusable, with the remedy."""
    if overwrite:
        raise SettingError(
            "output mode must be append, got complete: a stream does not replace scheduled tasks; write with "
            ".outputMode('append')"
        )
    target = read_target(options, schema, "stream")
    if rule := text_rule(_load_name(target.batch, MicroBatch(str(UUID(int=0)), 2**63))):
        raise SettingError(f"option batch must be shorter: it is the first part of the names of loads, each {rule}")
    if target.app is not None:
        find_app(target.app)  # an error of the driver is shorter than that of every task
    with open_for_loading(target.url) as store:
        return WheelStreamWriter(target, _loads_of(store, target.batch))


class WheelStreamWriter(DataSourceStreamArrowWriter):
    """Spark makes one for the plan of each micro-batch, which it pickles to the tasks, and another for its commit."""

    def __init__(self, target: WriteTarget, loads: Mapping[MicroBatch, BulkLoad]) -> None:
        self._target = target
        self._loads = loads

    @concise()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPart:
        part, micro_batch = _task()
        if self._is_loaded(micro_batch):
            return WrittenPart(part)
        remedy = "start the query again with the same checkpoint"
        return write_part(self._target, part, iterator, lambda store: self._join(store, micro_batch), remedy)

    def _is_loaded(self, micro_batch: MicroBatch) -> bool:
        loaded = [one for one, load in self._loads.items() if load.is_loaded]
        if any(one.query == micro_batch.query for one in loaded):
            return any(one.query == micro_batch.query and one.number >= micro_batch.number for one in loaded)
        if loaded:
            others = ", ".join(sorted({one.query for one in loaded}))
            raise SettingError(ANOTHER_QUERY.format(stream=self._target.batch, others=others, query=micro_batch.query))
        return False

    def _join(self, store: FullStore, micro_batch: MicroBatch) -> BulkLoad:
        planned = self._loads.get(micro_batch)
        run = 1 if planned is None else planned.run + 1
        return store.loads.join(_load_name(self._target.batch, micro_batch), run, now_ms())

    @concise()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        loads = [one.load for one in messages if isinstance(one, WrittenPart) and one.load is not None]
        if not loads:
            return  # no rows, or they were loaded before
        [(load, run)] = {(one.id, one.run) for one in loads}  # the writers of one plan have one run
        with open_for_loading(self._target.url) as store:
            store.loads.commit(load, run, part_results(messages), now_ms())
            micro_batches = {one.id: micro_batch for micro_batch, one in _loads_of(store, self._target.batch).items()}
            query, number = micro_batches[load]
            store.loads.forget(
                [id_ for id_, one in micro_batches.items() if one.query == query and one.number < number]
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave the load open, for the restarted query."""


def _task() -> tuple[int, MicroBatch]:
    """Return the part that this task writes, and its micro-batch."""
    context = TaskContext.get()
    query, number = (None, None) if context is None else map(context.getLocalProperty, (QUERY, NUMBER))
    if context is None or query is None or number is None:
        raise SettingError("trigger of the query must be one of micro-batches, like processingTime, got another")
    return context.partitionId(), MicroBatch(query, int(number))


def _load_name(stream: str, micro_batch: MicroBatch) -> str:
    return f"{stream}/{micro_batch.query}/{micro_batch.number}"


def _loads_of(store: FullStore, stream: str) -> dict[MicroBatch, BulkLoad]:
    """Return the stream's loads by their micro-batches."""
    prefix = f"{stream}/"
    found = ((_QUERY_AND_NUMBER(load.name.removeprefix(prefix)), load) for load in store.loads.by_prefix(prefix))
    return {MicroBatch(match[1], int(match[2])): load for match, load in found if match}
