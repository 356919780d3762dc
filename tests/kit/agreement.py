"""Comparisons of a job's results with DuckDB's: exact, and percentiles by rank. Each raises where the two differ."""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from celery_wheel.pipeline.cost_model import WheelShape
from celery_wheel.pipeline.jobs import forecast, tune
from tests.kit import duck

#: The tolerated rank error of a KLL sketch with k = 1000; it promises 0.3 % in 99 of 100.
RANK = 0.01


def lateness(hours: DataFrame, path: str, limits: Mapping[str, int]) -> int:
    """Compare the groups; returns their number."""
    ours = hours.drop("sketch").toArrow()
    with duck.connect() as connection:
        connection.register("ours", ours)
        expected = connection.execute(
            f"select count(*), count(*) filter (o.n is distinct from d.n or o.max_ms is distinct from d.max_ms "
            f"or o.over is distinct from d.over) from ({duck.lateness(path, limits)}) d "
            "full join ours o on o.task = d.task and o.queue = d.queue and o.hour = d.hour"
        ).fetchone()
        assert expected is not None
        assert expected[1] == 0, f"{expected[1]} of {expected[0]} groups differ"
        for column, rank in (("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99)):
            off = connection.execute(
                f"select max(greatest(below - {rank}, {rank} - upto)) from ("
                f"select avg((lateness_ms < o.{column})::int) as below, avg((lateness_ms <= o.{column})::int) as upto "
                f"from {duck.source(path)} d join ours o on o.task = d.task and o.queue = d.queue "
                "and o.hour = date_trunc('hour', d.dispatched) group by d.task, d.queue, o.hour)"
            ).fetchone()
            assert off is not None
            assert off[0] <= RANK, f"{column} is off by {off[0]:.4f} of the ranks"
    return int(expected[0])


def herds(found: DataFrame, path: str, least: int) -> int:
    ours = sorted((row.queue, int(row.second.timestamp()), row.n) for row in found.collect())
    sql = duck.herds(path, duck.START_MS // 1_000, least, forecast.WINDOW_S, forecast.DEVIATIONS)
    with duck.connect() as connection:
        theirs = sorted((row["queue"], row["second"], row["n"]) for row in duck.rows(connection, sql))
    assert ours == theirs
    return len(ours)


def minutes(found: DataFrame, path: str) -> int:
    rows = found.select((f.unix_seconds("minute") / 60).cast("long"), "queue", "n").collect()
    ours = sorted(tuple(row) for row in rows)
    with duck.connect() as connection:
        theirs = [tuple(row.values()) for row in duck.rows(connection, duck.minutes(path))]
    assert ours == theirs
    return len(ours)


def geometry(pairs: DataFrame, shapes: Sequence[WheelShape], path: str) -> int:
    longest_ms = tune.longest_delay_ms(pairs)
    [ours] = tune.total_costs(pairs, shapes, longest_ms).collect()
    with duck.connect() as connection:
        [theirs] = duck.rows(connection, duck.geometry(path, shapes, longest_ms))
    assert ours.asDict() == theirs
    return int(theirs["n"])


def bursts(pairs: DataFrame, ticks: Sequence[int], path: str) -> int:
    most: dict[int, int] = {}
    for row in tune.bursts(pairs, ticks).collect():
        most[row.tick_ms] = max(most.get(row.tick_ms, 0), row.n)
    with duck.connect() as connection:
        for tick in ticks:
            assert connection.execute(duck.bursts(path, tick)).fetchone() == (most[tick],)
    return most[max(ticks)]
