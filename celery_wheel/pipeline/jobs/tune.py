"""``tune``: what each tick and wheel size would cost with the tasks that there are, and which one to take.

::

    history or pending ──► (created, eta) ──┬► cascades, rounding, what is placed at all: one pass for all shapes
                                            ├► how many leave in one tick: counted by the finest tick, then coarser
                                            └► a sample ──► the wheel itself: must say the same, to the digit

    shapes-….parquet  tick_ms, wheel_size, levels, buckets (at most open), memory (their bytes, about), cascades,
                      cascades_a_task, rounding_ms (mean, later than asked), burst_max, burst_p99 (tasks in one tick),
                      recommended
    tune.png          heat map of cascades, with the buckets
    summary.json      tasks, shapes, recommended, checked, rejects

``geometry`` has the closed form and why it is right. What is checked is the sample: where the wheel says anything else,
the job ends with an error, and recommends nothing.

A scheduler has only the near part in its wheel (``wheel_window``): what is due later comes into it so long before. That
is what --window says; 0 looks at a wheel that holds all.

The recommendation: the coarsest tick whose mean rounding is within --within (a coarse tick costs fewer cascades and
wake-ups), and of its sizes the smallest that cascades at most a tenth more than the best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import gcd
from typing import Any

import click
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from celery_wheel.cli.options import Length
from celery_wheel.errors import WheelError
from celery_wheel.pipeline import inputs
from celery_wheel.pipeline.geometry import Shape, sums, turned
from celery_wheel.pipeline.jobs.outer import history_options, numbers
from celery_wheel.pipeline.output import Output
from celery_wheel.pipeline.summary import Summary
from celery_wheel.present import duration

NAME = "tune"
HELP = "Which tick and wheel size suit the tasks that there are."
OPTIONS = (
    *history_options,
    click.option("--table", type=click.Choice(["history", "pending"]), default="history", show_default=True),
    click.option(
        "--window", type=Length(), default="5m", show_default=True, help="As wheel_window; 0: all in the wheel."
    ),
    click.option("--ticks", callback=numbers(1), default="1,10,100,1000", show_default=True, help="Milliseconds."),
    click.option("--sizes", callback=numbers(2), default="16,64,256,512", show_default=True, help="Buckets a level."),
    click.option("--within", type=Length(), default="10ms", show_default=True, help="Later than asked, on average."),
    click.option("--sample", type=click.IntRange(1, 10_000), default=300, show_default=True, help="To check with."),
)

#: An open bucket: its dict with one timer, its number, its entry in the expiry queue. Measured with CPython 3.11.
BUCKET_BYTES = 450
#: A wheel size that cascades so much more than the best is as good, and smaller.
AS_GOOD = 1.1


def pairs(rows: DataFrame, window_ms: int = 0) -> tuple[DataFrame, DataFrame]:
    """((created_ms, due_ms), what cannot be used: with a reason); created: when it comes into the wheel."""
    wrong = {"no eta": f.col("eta").isNull(), "no instant at which it was made": f.col("created").isNull()}
    found, rejected = inputs.sound(rows, wrong)
    created, due = f.unix_millis("created"), f.unix_millis("eta")
    entered = f.greatest(created, due - window_ms) if window_ms else created
    return found.select(entered.alias("created_ms"), due.alias("due_ms")), rejected


def longest_ms(pairs: DataFrame) -> int:
    [row] = pairs.agg(f.max(f.col("due_ms") - f.col("created_ms"))).collect()
    return max(row[0] or 0, 0)


def geometry(pairs: DataFrame, shapes: Sequence[Shape], longest_ms: int) -> DataFrame:
    """One row: n, and of each shape ``placed_t``, ``rounding_t`` (by tick) and ``cascades_t_w``. One pass over them."""
    ticks = sorted({shape.tick_ms for shape in shapes})
    found = pairs.select(*(column for tick in ticks for column in _in_ticks(tick)))
    measures: list[Column] = [f.count("*").alias("n")]
    for tick in ticks:
        measures.append(f.sum(f"placed_{tick}").alias(f"placed_{tick}"))
        measures.append(f.sum(f"rounding_{tick}").alias(f"rounding_{tick}"))
    for shape in shapes:
        name = f"cascades_{shape.tick_ms}_{shape.wheel_size}"
        measures.append(f.sum(f.expr(_cascades(shape, shape.levels(longest_ms)))).alias(name))
    return found.agg(*measures)


def bursts(pairs: DataFrame, ticks: Sequence[int]) -> DataFrame:
    """tick_ms, n, ticks: in how many ticks n tasks leave. Counted once by what divides all ticks, then from that."""
    finest = reduce(gcd, ticks)
    slots = pairs.groupBy(_up("due_ms", finest).alias("slot_ms")).agg(f.count("*").alias("n"))
    by_tick = [
        slots.groupBy(_up("slot_ms", tick).alias("slot_ms"))
        .agg(f.sum("n").alias("n"))
        .groupBy(f.lit(tick).cast("long").alias("tick_ms"), "n")
        .agg(f.count("*").alias("ticks"))
        for tick in ticks
    ]
    return reduce(DataFrame.unionByName, by_tick)


def _up(column: str, tick_ms: int) -> Column:
    """Rounded up to the tick, as the wheel does, before 1970 too."""
    return f.col(column) + f.pmod(-f.col(column), f.lit(tick_ms))


def _in_ticks(tick_ms: int) -> tuple[Column, ...]:
    """Made and due in ticks; and whether it is placed at all, with by how much it leaves later than asked."""
    created = f.expr(f"(created_ms - pmod(created_ms, {tick_ms}L)) div {tick_ms}L")
    due = f.expr(f"(due_ms + pmod(-due_ms, {tick_ms}L)) div {tick_ms}L")
    rounding = f.expr(f"pmod(-due_ms, {tick_ms}L)")
    return (
        created.alias(f"c_{tick_ms}"),
        due.alias(f"e_{tick_ms}"),
        f.when(due > created, 1).otherwise(0).alias(f"placed_{tick_ms}"),
        f.when(due > created, rounding).otherwise(f.lit(0)).alias(f"rounding_{tick_ms}"),
    )


def _cascades(shape: Shape, levels: int) -> str:
    """As SQL, from the coarsest level down: what stays on a level is not asked about those above it."""
    size, c, e = shape.wheel_size, f"c_{shape.tick_ms}", f"e_{shape.tick_ms}"
    found = "0"
    for level in reversed(range(levels)):
        at_due, at_created = _digits(e, size, level), _digits(c, size, level)
        found = (
            f"if({at_due} - {at_created} >= {size}, if(pmod({at_due}, {size}L) != 0, 1, 0) + {found}, 0)"
            if size & (size - 1)
            else f"if({at_due} - {at_created} >= {size}, if(({at_due} & {size - 1}L) != 0, 1, 0) + {found}, 0)"
        )
    return found


def _digits(column: str, size: int, level: int) -> str:
    """floor(column / size^level): a shift where the size is a power of two."""
    if level == 0:
        return column
    if size & (size - 1) == 0:
        return f"shiftright({column}, {level * (size.bit_length() - 1)})"
    divisor = size**level
    return f"(({column} - pmod({column}, {divisor}L)) div {divisor}L)"


def check(sample: Sequence[tuple[int, int]], shapes: Sequence[Shape]) -> int:
    """The closed form against the wheel. Returns how many comparisons; raises WheelError at the first difference."""
    for shape in shapes:
        found, expected = sums(sample, shape), turned(sample, shape)[0]
        if found != expected:
            raise WheelError(f"the closed form says {found} of {len(sample)} tasks on {shape}, the wheel {expected}")
    return len(shapes) * len(sample)


def recommend(rows: Sequence[Mapping[str, Any]], within_ms: float) -> Mapping[str, Any]:
    """The one of ``rows`` to take."""
    ticks = {row["tick_ms"] for row in rows if row["rounding_ms"] <= within_ms}
    tick = max(ticks) if ticks else min(row["tick_ms"] for row in rows)
    sizes = [row for row in rows if row["tick_ms"] == tick]
    best = min(row["cascades_a_task"] for row in sizes)
    return min(
        (row for row in sizes if row["cascades_a_task"] <= best * AS_GOOD), key=lambda row: (row["buckets"], -best)
    )


def _percentile(counts: Sequence[tuple[int, int]], share: float) -> int:
    """Of (value, how often), the smallest value that so large a share does not exceed."""
    total, seen = sum(times for _, times in counts), 0
    for value, times in sorted(counts):
        seen += times
        if seen >= share * total:
            return value
    return 0


def run(spark: SparkSession, given: Mapping[str, Any], tell: Callable[[str], None]) -> Summary:
    output = Output(given["output"], NAME)
    shapes = [Shape(tick, size) for tick in given["ticks"] for size in given["sizes"]]
    table = _table(spark, given)
    found, rejected = pairs(inputs.span(table, "eta", given), round(given["window"] * 1_000))
    tell("the longest delay")
    longest = longest_ms(found)
    tell(f"{len(shapes)} shapes in one pass")
    [geometry_row] = geometry(found, shapes, longest).collect()
    tell("how many leave in one tick")
    burst_rows = [(row.tick_ms, row.n, row.ticks) for row in bursts(found, given["ticks"]).collect()]
    rows = table_of(shapes, geometry_row.asDict(), burst_rows, longest)
    tell("the wheel itself, with a sample")
    sample = [(row.created_ms, row.due_ms) for row in _sample(found, given["sample"], geometry_row.n)]
    checked = check(sample, shapes)
    tell("rows that cannot be used")
    rejects = output.rejects(rejected)
    best = recommend(rows, given["within"] * 1_000) if geometry_row.n else None
    rows = [{**row, "recommended": row is best} for row in rows]
    facts = {"tasks": geometry_row.n, "longest_ms": longest, "shapes": rows, "checked": checked, "rejects": rejects}
    _write(output, rows, facts)
    summary = Summary(NAME, facts, _words(rows, facts, given["within"] * 1_000))
    output.finish(summary)
    return summary


def _table(spark: SparkSession, given: Mapping[str, Any]) -> DataFrame:
    """What left, once; or what waits."""
    columns = "created timestamp, eta timestamp"
    if given["table"] == "pending":
        return inputs.table(spark, given, "pending", columns)
    return inputs.table(spark, given, "history", f"{columns}, outcome string").where("outcome = 'dispatched'")


def _sample(found: DataFrame, size: int, count: int) -> list[Any]:
    """About so many, the same for the same rows; of few all."""
    share = min(1.0, size * 1.2 / count) if count else 1.0
    return (found if share == 1.0 else found.sample(fraction=share, seed=1)).limit(size).collect()


def table_of(
    shapes: Sequence[Shape],
    sums: Mapping[str, int],
    bursts: Sequence[tuple[int, int, int]],
    longest_ms: int,
) -> list[dict[str, Any]]:
    """A row a shape, from the one row of ``geometry`` and those of ``bursts``."""
    by_tick: dict[int, list[tuple[int, int]]] = {}
    for tick_ms, count, ticks in bursts:
        by_tick.setdefault(tick_ms, []).append((count, ticks))
    rows = []
    for shape in shapes:
        cascades, placed = sums[f"cascades_{shape.tick_ms}_{shape.wheel_size}"], sums[f"placed_{shape.tick_ms}"]
        burst = by_tick.get(shape.tick_ms, [])
        rows.append(
            {
                "tick_ms": shape.tick_ms,
                "wheel_size": shape.wheel_size,
                "levels": shape.levels(longest_ms),
                "buckets": shape.buckets(longest_ms),
                "memory": shape.buckets(longest_ms) * BUCKET_BYTES,
                "cascades": cascades or 0,
                "cascades_a_task": (cascades or 0) / max(placed or 0, 1),
                "rounding_ms": (sums[f"rounding_{shape.tick_ms}"] or 0) / max(placed or 0, 1),
                "burst_max": max((count for count, _ in burst), default=0),
                "burst_p99": _percentile(burst, 0.99),
            }
        )
    return rows


def _write(output: Output, rows: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    import pyarrow as pa

    output.table("shapes", pa.Table.from_pylist(rows))

    def draw() -> Any:
        from celery_wheel.pipeline.plot import tune

        return tune(rows)

    facts["picture"] = output.picture(draw)


def _words(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], within_ms: float) -> list[str]:
    best = next((row for row in rows if row["recommended"]), None)
    if best is None:
        return ["there are no tasks to look at"]
    most = max(rows, key=lambda row: row["cascades_a_task"])
    words = [
        f"take wheel_tick = {best['tick_ms'] / 1_000:g}, wheel_size = {best['wheel_size']}: tasks leave "
        f"{best['rounding_ms']:.1f} ms after the time they asked for on average, and are placed anew "
        f"{best['cascades_a_task']:.2f} times; {best['levels']} levels for delays up to "
        f"{duration(facts['longest_ms'])}, at most {best['buckets']:,} buckets (about {best['memory'] / 1e3:,.0f} kB)",
        f"at once leave at most {best['burst_max']:,} tasks, in 99 of 100 ticks no more than {best['burst_p99']:,}",
        f"of {facts['tasks']:,} tasks; worst of these shapes is {most['tick_ms']} ms x {most['wheel_size']} with "
        f"{most['cascades_a_task']:.2f}; the wheel itself agreed in {facts['checked']:,} comparisons",
    ]
    if best["rounding_ms"] > within_ms:
        words.append(f"no tick of these keeps the mean rounding within {within_ms:g} ms: this is the finest one")
    if facts["rejects"]:
        words.append(f"rejected: {', '.join(f'{count:,} {why}' for why, count in facts['rejects'].items())}")
    return words
