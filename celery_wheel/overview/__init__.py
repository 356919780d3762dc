"""The one picture of a store that ``wheel status``, the admin, metrics and health checks show.

::

    commits ──► wheel_tally ──► wheel_total        sums by hour, by day, by queue and task: changed in the same commits
                                    │
    store.browse.overview(now) ◄────┴─ wheel_shard, wheel_lane, wheel_gate, wheel_scheduler
                │                   4 statements on one snapshot, for 1 shard and for 64
                ▼
    read_overview ──► Overview ──► shards      ShardStatus: holder, lease, pending, overdue, lanes, gates, inbox
         ▲                     ├─► due         DueLoad: by the second, the hour and the day
         │                     └─► queues, tasks, gates, schedulers
    OverviewCache.get()        one reading a second in each process, whoever asks

The cost of a reading depends on shards, names, lanes and days, and hardly on the pending tasks. Two figures are counted
from rows, and bounded: the overdue rows of a lane up to a thousand (above, whole hours of the tally count), and the
seconds of the next hour, of which ``OverviewCache`` reads some 20,000 rows a second at most, on average.

Promises: all figures of an Overview are of one moment, ``read_ms``. Only the seconds have a time of their own, and the
snapshots of the holders are half a second old. A figure of the cache is at most a second old, or the time
that a reading takes.
Non-promises: ``pending`` counts a message until its settlement is stored, up to a twentieth of a second after its
dispatch.

    reading      typed values from the store's rows             shards       the state of each shard
    cache        the last reading of a process; the counts of schedules, which are rarer
"""

from celery_wheel.overview.cache import OverviewCache, PacedCounts
from celery_wheel.overview.reading import HOURS, DueLoad, Overview, read_overview
from celery_wheel.overview.shards import SILENT_MS, ShardStatus

__all__ = ["HOURS", "SILENT_MS", "DueLoad", "Overview", "OverviewCache", "PacedCounts", "ShardStatus", "read_overview"]
