"""Checks of an installation, made from this host. They change nothing.

::

    settings   values and names, the app's class, limits of groups that need the reports of workers, wheel queues that
               workers consume, delays left to workers
    store      answers, its version and number of shards, open loads, keys of its messages, room on its disk, modes and
               file system of its files, history not archived; on PostgreSQL fsync, full_page_writes,
               synchronous_commit, replication and the oldest transaction
    broker     answers, the promises of its edge; RabbitMQ's confirms; Redis's persistence and eviction, and the store
               to which its offsets belong
    clocks     this host against Redis and PostgreSQL
    shards     holders and their age, backlog, defects that the holder counted, groups that starve or whose slots end
               by max_runtime alone, its version
    schedules  broken ones, ones that are late, entries that Beat's own scheduler runs or whose names are taken, and
               tasks that the app does not have
    queues     messages in the broker, their age, and whether the oldest can be read

``celery wheel doctor`` runs all checks; Django's system checks share some. Each check has a short time-out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from celery_wheel.operations.doctor import broker, schedules, settings, shards, store
from celery_wheel.operations.doctor.installation import Finding, Grade, Installation, split_remedy

__all__ = ["CHECKS", "Finding", "Grade", "Installation", "examine", "split_remedy"]

CHECKS: tuple[Callable[[Installation], Iterator[Finding]], ...] = (
    settings.check,
    store.check,
    broker.check,
    shards.check_clocks,
    shards.check,
    schedules.check,
    shards.check_queues,
)


def examine(app: Any) -> Iterator[list[Finding]]:
    """Yield the findings of each check in turn. With wrong settings no other check can run."""
    with Installation(app) as site:
        for check in CHECKS:
            yield [one.spelled(site.conf) for one in check(site)]
            if check is settings.check and any(site.conf.problems()):
                return
