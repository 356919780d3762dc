"""DuckDB as the yardstick of the jobs: a log generated from hashes, and the jobs' queries in SQL.

The log is a history as ``archive`` writes it, with the columns that the jobs read: Parquet by day. It has 50 tasks on
10 queues over ``days`` days; delays from 50 ms to 30 days; one hour in which all is late; a herd every six hours.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import duckdb

from celery_wheel.pipeline.cost_model import WheelShape

#: 2026-11-01T00:00Z
START_MS = 1_793_491_200_000

_LOG = """
with raw as (
    select i, (hash(i) % 1000003)::bigint as a, (hash(i + 1000000007) % 1000003)::bigint as b,
        (hash(i + 2000000011) % 1000003)::bigint as c
    from range({rows}) as r(i)
), made as (
    select i, c, 'app.task_' || (a % 50) as task, 'queue_' || (a % 10) as queue,
        case when i % 20 = 0 then {start} + (b % ({days} * 4)) * 21600000 + 100
             else {start} + (i * {days}::hugeint * 86400000 // {rows})::bigint end as eta_ms,
        (50 * pow(10, (b / 1000003.0) * 7.7))::bigint as delay_ms,
        (pow(10, (c / 1000003.0) * 3.2))::bigint as late_ms
    from raw
), late as (
    select *, late_ms + case when (eta_ms - {start}) // 3600000 = 30 then 20000 else 0 end as lateness_ms from made
)
select i as seq, eta_ms as due_ms, 'id-' || i as task_id, task, queue, 'dispatched' as outcome, lateness_ms,
    timezone('UTC', epoch_ms(eta_ms)) as eta, timezone('UTC', epoch_ms(eta_ms - delay_ms)) as created,
    timezone('UTC', epoch_ms(eta_ms + lateness_ms)) as dispatched,
    strftime(epoch_ms(eta_ms + lateness_ms), '%Y-%m-%d') as day
from late
"""


def connect() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'; set enable_progress_bar = false")
    return connection


def generate(folder: Path, rows: int, days: int = 7) -> str:
    """Write a log; returns the path to read."""
    with connect() as duck:
        duck.execute(
            f"copy ({_LOG.format(rows=rows, start=START_MS, days=days)}) to '{folder}' "
            "(format parquet, partition_by (day), compression zstd)"
        )
    return str(folder)


def source(path: str) -> str:
    return f"read_parquet('{path}/*/*.parquet', hive_partitioning = true)"


def lateness(path: str, limits: Mapping[str, int]) -> str:
    """Return the query for task, queue, hour, n, p50, p90, p99, max, over, with exact percentiles."""
    limit = "case queue " + " ".join(f"when '{name}' then {ms}" for name, ms in limits.items() if name != "*")
    limit += f" else {limits.get('*', 'null')} end"
    return f"""
        select task, queue, date_trunc('hour', dispatched) as hour, count(*) as n,
            quantile_disc(lateness_ms, [0.5, 0.9, 0.99]) as ps, max(lateness_ms) as max_ms,
            count(*) filter (lateness_ms > {limit}) as over
        from {source(path)} where outcome = 'dispatched' group by all
    """


def herds(path: str, from_s: int, least: int, window: int, deviations: int) -> str:
    """Return the query for the herds (queue, second, n) by the definition of ``forecast``."""
    return f"""
        with s as (
            select queue, due_ms // 1000 as second, count(*)::double as n from {source(path)}
            where due_ms >= {from_s * 1_000} group by all
        ), w as (
            select *, second - {window} >= {from_s} as known,
                sum(n) over before as s1, sum(n * n) over before as q1,
                sum(n) over after as s2, sum(n * n) over after as q2
            from s window
                before as (partition by queue order by second range between {window} preceding and 1 preceding),
                after as (partition by queue order by second range between 1 following and {window} following)
        ), u as (
            select queue, second, n, coalesce(if(known, s1, s2), 0) / {window} as usual,
                coalesce(if(known, q1, q2), 0) / {window} as square from w
        )
        select queue, second, n::bigint as n from u
        where n > greatest(usual + {deviations} * sqrt(greatest(square - usual * usual, 0)), {least} - 1)
        order by second, queue
    """


def minutes(path: str) -> str:
    return f"select due_ms // 60000 as minute, queue, count(*) as n from {source(path)} group by all order by all"


def geometry(path: str, shapes: Iterable[WheelShape], longest_ms: int) -> str:
    """Return the query for one row with the sums of ``tune.total_costs`` and its n."""
    shapes = list(shapes)
    ticks = sorted({shape.tick_ms for shape in shapes})
    in_ticks = ", ".join(f"c // {tick} as c{tick}, (d + {tick - 1}) // {tick} as e{tick}" for tick in ticks)
    measures = [f"count(*) filter (e{tick} > c{tick}) as placed_{tick}" for tick in ticks]
    measures += [f"sum(e{tick} * {tick} - d) filter (e{tick} > c{tick}) as rounding_{tick}" for tick in ticks]
    for shape in shapes:
        tick, size = shape.tick_ms, shape.wheel_size
        terms = [
            f"(e{tick} // {size**k} - c{tick} // {size**k} >= {size} and e{tick} // {size**k} % {size} != 0)::int"
            for k in range(shape.levels(longest_ms))
        ]
        measures.append(f"sum({' + '.join(terms)})::bigint as cascades_{tick}_{size}")
    return f"""
        with p as (select epoch_ms(created) as c, epoch_ms(eta) as d from {source(path)}),
             t as (select d, {in_ticks} from p)
        select count(*) as n, {", ".join(measures)} from t
    """


def bursts(path: str, tick_ms: int) -> str:
    """Return the query for the greatest number of tasks that expire in one tick."""
    return f"""
        select max(n) from (select (epoch_ms(eta) + {tick_ms - 1}) // {tick_ms} as slot, count(*) as n
        from {source(path)} group by all)
    """


def rows(connection: duckdb.DuckDBPyConnection, sql: str) -> list[dict[str, Any]]:
    found = connection.execute(sql)
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]
