"""``tune``: the cost of each tick and wheel size for given tasks, and a recommendation.

::

    shapes-….parquet  tick_ms, wheel_size, levels, buckets (at most open), memory (their bytes, about), cascades,
                      cascades_a_task, rounding_ms (mean, later than asked), burst_max, burst_p99 (tasks in one tick),
                      recommended

``cost_model`` has the closed form, which one pass computes for all shapes and the wheel itself confirms on a sample. A
scheduler holds only its window in the wheel (``wheel_window``, --window): a task enters it that long before it is due.
Recommended is the coarsest tick whose mean rounding is within --within, and of its sizes the smallest with at most a
tenth more cascades than the best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import gcd
from typing import Any

import click
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from celery_wheel.errors import WheelError
from celery_wheel.pipeline import inputs
from celery_wheel.pipeline.cost_model import WheelShape, compute_cost, simulate_cost
from celery_wheel.pipeline.jobs import JobSummary, Options, Progress, describe_rejects
from celery_wheel.pipeline.output import OutputFolder
from celery_wheel.values.format import format_duration

NAME = "tune"
OPTIONS = (
    *inputs.history_options,
    inputs.choice_option("--table", ("history", "pending"), "Table with the tasks."),
    inputs.duration_option("--window", "5m", "Length of wheel_window; 0: the wheel holds all tasks."),
    click.option(
        "--ticks", callback=inputs.numbers_parser(1), default="1,10,100,1000", show_default=True, help="Ticks in ms."
    ),
    click.option(
        "--sizes", callback=inputs.numbers_parser(2), default="16,64,256,512", show_default=True, help="Wheel sizes."
    ),
    inputs.duration_option("--within", "10ms", "Largest mean rounding."),
    click.option("--sample", type=click.IntRange(1, 10_000), default=300, show_default=True, help="Tasks to simulate."),
)


def pairs(rows: DataFrame, window_ms: int = 0) -> tuple[DataFrame, DataFrame]:
    """Return ((created_ms, due_ms), rejected rows with a reason); a task enters the wheel at ``created_ms``."""
    reasons = {"no eta": f.col("eta").isNull(), "no creation time": f.col("created").isNull()}
    usable, rejected = inputs.split_usable(rows, reasons)
    created, due = f.unix_millis("created"), f.unix_millis("eta")
    entered = f.greatest(created, due - window_ms) if window_ms else created
    return usable.select(entered.alias("created_ms"), due.alias("due_ms")), rejected


def longest_delay_ms(pairs: DataFrame) -> int:
    [row] = pairs.agg(f.max(f.col("due_ms") - f.col("created_ms"))).collect()
    return max(row[0] or 0, 0)


def total_costs(pairs: DataFrame, shapes: Sequence[WheelShape], longest_ms: int) -> DataFrame:
    """Return one row, in one pass: n, ``placed_t`` and ``rounding_t`` of each tick, ``cascades_t_w`` of each shape."""
    ticks = sorted({shape.tick_ms for shape in shapes})
    in_ticks = pairs.select(*(column for tick in ticks for column in _in_ticks(tick)))
    measures: list[Column] = [f.count("*").alias("n")]
    for tick in ticks:
        measures.append(f.sum(f"placed_{tick}").alias(f"placed_{tick}"))
        measures.append(f.sum(f"rounding_{tick}").alias(f"rounding_{tick}"))
    for shape in shapes:
        name = f"cascades_{shape.tick_ms}_{shape.wheel_size}"
        measures.append(f.sum(f.expr(_cascades_sql(shape, shape.levels(longest_ms)))).alias(name))
    return in_ticks.agg(*measures)


def bursts(pairs: DataFrame, ticks: Sequence[int]) -> DataFrame:
    """Return (tick_ms, n, ticks): the number of ticks with n tasks, from one count by the finest tick."""
    finest = reduce(gcd, ticks)
    slots = pairs.groupBy(_round_up("due_ms", finest).alias("slot_ms")).agg(f.count("*").alias("n"))
    by_tick = [
        slots.groupBy(_round_up("slot_ms", tick).alias("slot_ms"))
        .agg(f.sum("n").alias("n"))
        .groupBy(f.lit(tick).cast("long").alias("tick_ms"), "n")
        .agg(f.count("*").alias("ticks"))
        for tick in ticks
    ]
    return reduce(DataFrame.unionByName, by_tick)


def _round_up(column: str, tick_ms: int) -> Column:
    """Round up to the tick, as the wheel does, also before 1970."""
    return f.col(column) + f.pmod(-f.col(column), f.lit(tick_ms))


def _in_ticks(tick_ms: int) -> tuple[Column, ...]:
    """Return the columns c (created) and e (due) in ticks, placed (0 or 1), and rounding in milliseconds."""
    created = f.expr(f"(created_ms - pmod(created_ms, {tick_ms}L)) div {tick_ms}L")
    due = f.expr(f"(due_ms + pmod(-due_ms, {tick_ms}L)) div {tick_ms}L")
    rounding = f.expr(f"pmod(-due_ms, {tick_ms}L)")
    return (
        created.alias(f"c_{tick_ms}"),
        due.alias(f"e_{tick_ms}"),
        f.when(due > created, 1).otherwise(0).alias(f"placed_{tick_ms}"),
        f.when(due > created, rounding).otherwise(f.lit(0)).alias(f"rounding_{tick_ms}"),
    )


def _cascades_sql(shape: WheelShape, levels: int) -> str:
    """Return the count of cascades as SQL, nested from the finest level up to the level of the first placement."""
    size, c, e = shape.wheel_size, f"c_{shape.tick_ms}", f"e_{shape.tick_ms}"
    sql = "0"
    for level in reversed(range(levels)):
        at_due, at_created = _shift(e, size, level), _shift(c, size, level)
        digit = f"pmod({at_due}, {size}L)" if size & (size - 1) else f"({at_due} & {size - 1}L)"
        sql = f"if({at_due} - {at_created} >= {size}, if({digit} != 0, 1, 0) + {sql}, 0)"
    return sql


def _shift(column: str, size: int, level: int) -> str:
    """Return floor(column / size^level) as SQL: a bit shift where the size is a power of two."""
    if level == 0:
        return column
    if size & (size - 1) == 0:
        return f"shiftright({column}, {level * (size.bit_length() - 1)})"
    divisor = size**level
    return f"(({column} - pmod({column}, {divisor}L)) div {divisor}L)"


def compare_with_wheel(sample: Sequence[tuple[int, int]], shapes: Sequence[WheelShape]) -> int:
    """Compare the closed form with the wheel; returns the number of comparisons. Raises WheelError at a difference."""
    for shape in shapes:
        computed, simulated = compute_cost(sample, shape), simulate_cost(sample, shape)[0]
        if computed != simulated:
            raise WheelError(
                f"the closed form gives {computed} for {len(sample)} tasks on {shape}, the wheel {simulated}; nothing "
                "is recommended; report this as a defect, with the sample"
            )
    return len(shapes) * len(sample)


def recommend(rows: Sequence[Mapping[str, Any]], within_ms: float) -> Mapping[str, Any]:
    ticks = {row["tick_ms"] for row in rows if row["rounding_ms"] <= within_ms}
    tick = max(ticks) if ticks else min(row["tick_ms"] for row in rows)
    sizes = [row for row in rows if row["tick_ms"] == tick]
    best = min(row["cascades_a_task"] for row in sizes)
    good = (row for row in sizes if row["cascades_a_task"] <= best * 1.1)
    return min(good, key=lambda row: row["buckets"])


def _percentile(counts: Sequence[tuple[int, int]], share: float) -> int:
    """Return the smallest value of (value, frequency) that a ``share`` of all does not exceed."""
    total, seen = sum(frequency for _, frequency in counts), 0
    for value, frequency in sorted(counts):
        seen += frequency
        if seen >= share * total:
            return value
    return 0


check = inputs.check_table


def run(spark: SparkSession, options: Options, progress: Progress) -> JobSummary:
    output = OutputFolder(options["output"], NAME)
    shapes = [WheelShape(tick, size) for tick in options["ticks"] for size in options["sizes"]]
    columns = "created timestamp, eta timestamp"
    if options["table"] == "history":
        columns += ", outcome string"
    table = inputs.read_table(spark, options, options["table"], columns)
    table = table.where("outcome = 'dispatched'") if options["table"] == "history" else table
    found, rejected = pairs(inputs.within_span(table, "eta", options), round(options["window"] * 1_000))
    progress("finding the longest delay")
    longest_ms = longest_delay_ms(found)
    progress(f"computing {len(shapes)} shapes in one pass")
    [totals] = total_costs(found, shapes, longest_ms).collect()
    progress("counting bursts")
    burst_rows = [(row.tick_ms, row.n, row.ticks) for row in bursts(found, options["ticks"]).collect()]
    rows = shape_rows(shapes, totals.asDict(), burst_rows, longest_ms)
    progress("comparing a sample with the wheel itself")
    sample = [(row.created_ms, row.due_ms) for row in _sample(found, options["sample"], totals.n)]
    checked = compare_with_wheel(sample, shapes)
    progress("counting rejected rows")
    rejects = output.rejects(rejected)
    best = recommend(rows, options["within"] * 1_000) if totals.n else None
    rows = [{**row, "recommended": row is best} for row in rows]
    facts = {"tasks": totals.n, "longest_ms": longest_ms, "shapes": rows, "checked": checked, "rejects": rejects}
    output.rows("shapes", rows)
    facts["picture"] = output.picture(lambda plot: plot.tune(rows))
    return output.finish(JobSummary(NAME, facts, _words(rows, facts, options["within"] * 1_000)))


def _sample(found: DataFrame, size: int, count: int) -> list[Any]:
    """Return about ``size`` rows of ``count``, the same ones for the same rows."""
    share = min(1.0, size * 1.2 / count) if count else 1.0
    return (found if share == 1.0 else found.sample(fraction=share, seed=1)).limit(size).collect()


def shape_rows(
    shapes: Sequence[WheelShape],
    totals: Mapping[str, int],
    bursts: Sequence[tuple[int, int, int]],
    longest_ms: int,
) -> list[dict[str, Any]]:
    """Return a row for each shape, from the one row of ``total_costs`` and those of ``bursts``."""
    by_tick: dict[int, list[tuple[int, int]]] = {}
    for tick_ms, count, ticks in bursts:
        by_tick.setdefault(tick_ms, []).append((count, ticks))
    rows = []
    for shape in shapes:
        cascades, placed = totals[f"cascades_{shape.tick_ms}_{shape.wheel_size}"], totals[f"placed_{shape.tick_ms}"]
        burst = by_tick.get(shape.tick_ms, [])
        rows.append(
            {
                "tick_ms": shape.tick_ms,
                "wheel_size": shape.wheel_size,
                "levels": shape.levels(longest_ms),
                "buckets": shape.buckets(longest_ms),
                # A non-empty bucket: a dict with one timer, a number, an entry in the expiry queue, on CPython 3.11.
                "memory": shape.buckets(longest_ms) * 450,
                "cascades": cascades or 0,
                "cascades_a_task": (cascades or 0) / max(placed or 0, 1),
                "rounding_ms": (totals[f"rounding_{shape.tick_ms}"] or 0) / max(placed or 0, 1),
                "burst_max": max((count for count, _ in burst), default=0),
                "burst_p99": _percentile(burst, 0.99),
            }
        )
    return rows


def _words(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], within_ms: float) -> list[str]:
    best = next((row for row in rows if row["recommended"]), None)
    if best is None:
        return ["there are no tasks"]
    most = max(rows, key=lambda row: row["cascades_a_task"])
    words = [
        f"take wheel_tick = {best['tick_ms'] / 1_000:g}, wheel_size = {best['wheel_size']}: a task is dispatched "
        f"{best['rounding_ms']:.1f} ms after its eta on average, after {best['cascades_a_task']:.2f} cascades; "
        f"{best['levels']} levels for delays up to "
        f"{format_duration(facts['longest_ms'])}, at most {best['buckets']:,} buckets "
        f"(about {best['memory'] / 1e3:,.0f} kB)",
        f"one tick dispatches at most {best['burst_max']:,} tasks, and 99 of 100 ticks at most {best['burst_p99']:,}",
        f"{facts['tasks']:,} tasks; worst of these shapes is {most['tick_ms']} ms x {most['wheel_size']} with "
        f"{most['cascades_a_task']:.2f} cascades; the wheel itself agreed in {facts['checked']:,} comparisons",
    ]
    if best["rounding_ms"] > within_ms:
        words.append(f"none of these ticks keeps the mean rounding within {within_ms:g} ms: this is the finest one")
    return words + describe_rejects(facts["rejects"])
