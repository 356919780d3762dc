"""Recurring schedules: none is broken, and their occurrences are made in time."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from celery_wheel.operations.doctor.finding import Finding, ok, warning
from celery_wheel.operations.doctor.installation import Installation
from celery_wheel.store.ports.schedules import ScheduleCriteria
from celery_wheel.values.format import format_count, format_duration, format_utc, printable

#: Broken schedules that are named; further ones are counted.
NAMED = 10
#: A later instant is a warning; a guarded schedule may wait that long for an earlier run.
BEHIND_MS = 600_000


def check(site: Installation) -> Iterator[Finding]:
    if site.store is None:
        return
    counts = site.store.browse.schedule_counts()
    if not counts.total:
        return
    next_ = "none has a next instant" if counts.next_ms is None else f"the next instant is {format_utc(counts.next_ms)}"
    yield ok("schedules", f"{format_count(counts.total, 'schedule')}, {counts.paused:,} paused; {next_}")
    if counts.with_base:
        yield ok(
            "schedules",
            f"{format_count(counts.with_base, 'entry')} of beat_schedule or django-celery-beat can only be run by "
            "Beat's own scheduler, which runs them: schedules list shows each with the reason",
        )
    yield from _broken(site, counts.broken)
    behind_ms = 0 if counts.next_ms is None else site.now_ms() - counts.next_ms
    if behind_ms > BEHIND_MS and all(shard.live for shard in site.shards):
        yield warning(
            "schedules",
            f"an instant of {format_duration(behind_ms)} ago has not become a task, though schedulers run: the wheel "
            "does not run schedules, or an earlier run of that schedule is not over",
            "See celery -A <project> wheel schedules show for its runs, and beat's log.",
        )


def _broken(site: Installation, count: int) -> Iterator[Finding]:
    if not count or site.store is None:
        return
    for one in site.store.browse.schedules(ScheduleCriteria(broken=True), limit=NAMED).items:
        yield warning(
            "schedule",
            f"{printable(one.name)} is broken, and does not run: {printable(one.note, 300)}",
            "Correct its definition at its source; or fix the cause, and run: celery -A <project> wheel schedules "
            f"resume {shlex.quote(printable(one.name))}",
        )
    if count > NAMED:
        yield warning(
            "schedules",
            f"{count - NAMED:,} more schedules are broken",
            "List them: celery -A <project> wheel schedules list --broken",
        )
