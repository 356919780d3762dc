"""Checks of an installation, made from this host. They change nothing.

::

    settings   values and names, the app's class, limits of groups that need the reports of workers, wheel queues that
               workers consume, delays left to workers
    store      answers, version, number of shards, open loads, keys of messages, disk, files' modes and file system,
               history not archived; on PostgreSQL settings that lose commits, replication, the oldest transaction
    broker     answers, the promises of its edge; RabbitMQ's confirms; Redis's persistence and eviction, and the store
               to which its offsets belong
    clocks     this host against Redis and PostgreSQL
    shards     holders, their age and version, backlog, defects, groups that starve or whose slots end by max_runtime
               alone
    schedules  broken or late ones, entries that Beat's own scheduler runs or whose names are taken, unknown tasks
    queues     messages in the broker, their age, and whether the oldest can be read

``celery wheel doctor`` runs all checks; Django's system checks share some. Each check has a short time-out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from celery_wheel.errors import SettingError
from celery_wheel.operations.doctor import broker, schedules, settings, shards, store
from celery_wheel.operations.doctor.installation import Finding, Grade, Installation, note, split_remedy

__all__ = ["CHECKS", "Finding", "Grade", "Installation", "examine", "split_remedy"]

Check = Callable[[Installation], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    settings.check,
    settings.check_app,
    settings.check_reports,
    settings.check_queues,
    settings.destinations,
    settings.check_visibility,
    store.check,
    broker.check,
    shards.check_clocks,
    shards.check,
    schedules.check,
    shards.check_queues,
)


def examine(app: Any) -> Iterator[list[Finding]]:
    """Yield the findings of each check in turn. A check that a wrong setting ends says so, and hides no other."""
    with Installation(app) as site:
        is_wrong = any(site.conf.problems())
        for check in CHECKS:
            yield [one.spelled(site.conf) for one in _findings(check, site, is_wrong)]


def _findings(check: Check, site: Installation, is_wrong: bool) -> Iterator[Finding]:
    try:
        yield from check(site)
    except SettingError as problem:
        if not is_wrong:
            raise
        about = check.__module__.rpartition(".")[2]
        yield note(about, f"not all was checked: {problem}", "Correct the settings, and run doctor again.")
