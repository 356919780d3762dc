"""The recurring schedules: none is broken, no name is taken, the app has their tasks, and they are made in time."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import islice

from celery_wheel.operations.doctor.installation import Finding, Installation, ok, warning
from celery_wheel.requests.arguments import unknown_tasks
from celery_wheel.requests.schedules.definitions import schedule_view
from celery_wheel.store.schedule_model import REPLACED, Schedule, ScheduleCriteria
from celery_wheel.values import pages_of
from celery_wheel.values.format import format_count, format_duration, format_utc, printable
from celery_wheel.values.instants import now_ms
from celery_wheel.values.mask import Mask

#: Broken schedules, and entries of a source, that are named; further ones are counted.
NAMED = 10
#: A later instant is a warning; a guarded schedule may wait that long for an earlier run.
BEHIND_MS = 600_000
#: The most schedules whose tasks are checked, and the schedules of one read.
MOST_READ, PAGE = 20_000, 2_000


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
    silent = site.store.browse.silent_schedules(now_ms())
    if silent.count:
        yield warning(
            "schedules",
            f"{format_count(silent.count, 'schedule')} made their instants until {format_utc(silent.until_ms)} before "
            "the clock went back, and wait until it is there again: no instant runs twice",
            "Wait; or run what must not wait: celery -A proj wheel schedules trigger.",
        )
    if counts.failing:
        yield warning(
            "schedules",
            f"the next message of {format_count(counts.failing, 'schedule')} cannot be made, and is tried again with "
            "longer and longer waits; after an hour the schedule is broken",
            "See celery -A proj wheel schedules list: a failing schedule has the error of the project's code.",
        )
    yield from _clashes(site)
    yield from _replaced(site)
    yield from _unknown_tasks(site)
    behind_ms = 0 if counts.next_ms is None else now_ms() - counts.next_ms
    if behind_ms > BEHIND_MS and all(shard.live for shard in site.shards):
        yield warning(
            "schedules",
            f"an instant of {format_duration(behind_ms)} ago has not become a task, though schedulers run: the wheel "
            "does not run schedules, or an earlier run of that schedule is not over",
            "See celery -A proj wheel schedules show for its runs, and beat's log.",
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
                    "Rename the entry, or the schedule: celery -A proj wheel schedules show names its source.",
                )


def _broken(site: Installation, count: int) -> Iterator[Finding]:
    if not count or site.store is None:
        return
    mask = Mask(site.conf.mask)
    for one in site.store.browse.schedules(ScheduleCriteria(broken=True), limit=NAMED).items:
        yield warning(
            "schedule",
            f"{printable(one.name)} is broken, and does not run: {printable(mask.text(one.note), 300)}",
            "Correct its definition at its source; or fix the cause, and run: celery -A proj wheel schedules "
            f"resume {shlex.quote(printable(one.name))}",
        )
    if count > NAMED:
        yield warning(
            "schedules",
            f"{count - NAMED:,} more schedules are broken",
            "List them: celery -A proj wheel schedules list --broken",
        )


def _replaced(site: Installation) -> Iterator[Finding]:
    """Yield a warning for schedules whose runs cancel each other, so that perhaps none of them is finished."""
    own = (one for one in islice(_schedules(site), MOST_READ) if one.cancels_running)
    for one in islice(own, 200):  # the most whose runs are read
        detail = None if site.store is None else site.store.browse.schedule(one.name)
        if detail is not None and detail.replaced >= REPLACED:
            yield warning(
                "schedule",
                f"each of the last {detail.replaced} runs of {printable(one.name)} was cancelled by the next one "
                "(cancel_running), begun or not: the workers are busy, or a run takes longer than from one instant to "
                "the next",
                "Add workers or make the instants rarer; or let the earlier run go first: --overlap queue_one.",
            )


def _unknown_tasks(site: Installation) -> Iterator[Finding]:
    named: dict[str, list[str]] = {}
    for one in islice(_schedules(site), MOST_READ):
        named.setdefault(schedule_view(one).task, []).append(one.name)
    try:
        unknown = unknown_tasks(site.app, filter(None, named))
    except Exception as error:  # raised by modules of the project
        yield warning(
            "schedules",
            f"the modules of the app's tasks cannot be imported, so the tasks of schedules are not checked: {error!r}",
            "A worker fails in the same way: correct the error.",
        )
        return
    for task in sorted(unknown)[:NAMED]:
        names = named[task]
        listed = printable(names[0]) + (", …" if len(names) > 1 else "")
        yield warning(
            "schedule",
            f"the app does not have the task {printable(task)} of {format_count(len(names), 'schedule')} "
            f"({listed}): it is sent by its name, and a worker without it discards it",
            "Correct the name; or leave it as it is, where workers of another project have the task.",
        )


def _schedules(site: Installation) -> Iterator[Schedule]:
    if (store := site.store) is not None:
        for page in pages_of(lambda after: store.browse.schedules(ScheduleCriteria(broken=False), after, PAGE), ""):
            yield from page.items
