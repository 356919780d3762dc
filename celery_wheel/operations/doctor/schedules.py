"""The recurring schedules: none is broken, no entry has the name of another one, and they are made in time."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from celery_wheel.operations.doctor.finding import Finding, ok, warning
from celery_wheel.operations.doctor.installation import Installation
from celery_wheel.store.ports.schedules import ScheduleCriteria
from celery_wheel.values.format import format_count, format_duration, format_utc, printable

#: Broken schedules, and entries of a source, that are named; further ones are counted.
NAMED = 10
#: An instant that is not made for so long is a warning: guarded schedules wait for an earlier run, within reason.
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
            "Beat's own scheduler, which does: schedules list shows each with the reason",
        )
    yield from _broken(site, counts.broken)
    yield from _clashes(site)
    behind_ms = 0 if counts.next_ms is None else site.now_ms() - counts.next_ms
    if behind_ms > BEHIND_MS and all(shard.live for shard in site.shards):
        yield warning(
            "schedules",
            f"an instant of {format_duration(behind_ms)} ago has not become a task, though schedulers run: the wheel "
            "does not run schedules, or an earlier run of that schedule is not over",
            "See celery -A <project> wheel schedules show for its runs, and beat's log.",
        )


def _clashes(site: Installation) -> Iterator[Finding]:
    """Yield a finding for each source that has entries whose names are taken, as the holder of shard 0 reports them."""
    for shard in site.shards:
        for source, found in ((shard.live and shard.snapshot) or {}).get("sources", {}).items():
            if names := found["clashes"]:
                listed = ", ".join(map(printable, names[:NAMED]))
                more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
                yield warning(
                    "schedules",
                    f"{format_count(len(names), 'entry')} of {source} cannot run, since another source has a schedule "
                    f"of that name: {listed}{more}",
                    "Rename the entry, or the schedule: celery -A <project> wheel schedules show names its source.",
                )


def _broken(site: Installation, count: int) -> Iterator[Finding]:
    if not count or site.store is None:
        return
    for one in site.store.browse.schedules(ScheduleCriteria(broken=True), limit=NAMED).items:
        yield warning(
            "schedule",
            f"{printable(one.name)} is broken, and nothing of it runs: {printable(one.note, 300)}",
            "Correct it where it comes from, or when the cause is mended: celery -A <project> wheel schedules resume "
            f"{shlex.quote(printable(one.name))}",
        )
    if count > NAMED:
        yield warning(
            "schedules",
            f"{count - NAMED:,} more schedules are broken",
            "List them: celery -A <project> wheel schedules list --broken",
        )
