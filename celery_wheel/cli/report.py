"""The status of the shards and of the schedules: tables, by rich, or one JSON object for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from celery_wheel.cli.group import NEEDS_ACTION
from celery_wheel.console.output import console, facts_table
from celery_wheel.console.parameters import now_ms
from celery_wheel.store.schedule_model import ScheduleCriteria
from celery_wheel.values.format import PART_CUT, format_utc, printable

if TYPE_CHECKING:
    from celery_wheel.control import Wheel
    from celery_wheel.overview import ShardStatus
    from celery_wheel.store.schedule_model import Schedule, ScheduleCounts, SilentSchedules

#: Broken schedules that are shown.
BROKEN = 5


def report(wheel: Wheel, *, as_json: bool) -> tuple[str, int]:
    """Return the text, and the exit code: 3 while a shard has no live holder.

    Raises ImportError, with the remedy, where tables are wanted and rich is not installed.
    """
    shards, counts = wheel.status(), wheel.store.browse.schedule_counts()
    broken = wheel.store.browse.schedules(ScheduleCriteria(broken=True), limit=BROKEN).items if counts.broken else []
    silent = wheel.store.browse.silent_schedules(now_ms())
    broken = [replace(one, note=wheel.mask.text(one.note)) for one in broken]
    code = 0 if all(shard.live for shard in shards) else NEEDS_ACTION
    if as_json:
        schedules = {**asdict(counts), "silent": asdict(silent), "reasons": {one.name: one.note for one in broken}}
        found = {"store": wheel.store.name, "shards": [shard.as_dict() for shard in shards], "schedules": schedules}
        return json.dumps(found), code
    terminal = console()
    with terminal.capture() as captured:
        terminal.print(f"store {printable(wheel.store.name, PART_CUT)}", highlight=False, markup=False, soft_wrap=True)
        for shard in shards:
            terminal.print(facts_table(f"shard {shard.shard}", _facts(shard)))
            if shard.live and shard.snapshot:
                terminal.print(_levels(shard.snapshot))
        if counts.total:
            terminal.print(facts_table("schedules", _schedule_facts(counts, broken, silent)))
    return captured.get().rstrip("\n"), code


def _facts(shard: ShardStatus) -> Iterator[tuple[str, str]]:
    heard = "never" if shard.snapshot_age_ms is None else f"{shard.snapshot_age_ms / 1000:.1f} s ago"
    yield "holder", f"{shard.holder or 'none'} (epoch {shard.epoch}, last seen: {heard})"
    yield "pending", f"{shard.pending:,} accepted by a scheduler"
    yield "next due", "nothing" if shard.next_due_ms is None else instant(shard.next_due_ms)
    yield "behind", f"{shard.behind_ms / 1000:.1f} s, {shard.overdue:,} overdue" if shard.behind_ms else "no"
    if shard.held:
        yield "held", f"{shard.held:,} due tasks, by a pause or a limit"
    if shard.inbox:
        yield "inbox", f"{shard.inbox:,} messages and requests"
    if shard.clock_dispute:
        yield "clock", f"disputed: {shard.clock_dispute}"
    for lane in shard.lanes:
        beside = ", beside the main lane" if lane["lane"] else ""
        refusing = f", waits for {printable(lane['target'])}" if lane["target"] else beside
        yield "offset", f"{instant(lane['offset'][0])} (seq {lane['offset'][1]}){refusing}"
    for gate in shard.gates:
        yield gate.state, f"{printable(gate.what)}, since {format_utc(gate.at_ms)}, by {printable(gate.actor)}"
    snapshot = shard.snapshot if shard.live else None
    if snapshot:
        yield "in memory", f"{snapshot['window_count']:,} tasks, {snapshot['window_bytes']:,} bytes"
        yield "dispatched", f"{snapshot['dispatched']:,} since this holder began"
        yield "rejected", f"{snapshot['rejected']:,} since this holder began"


def _schedule_facts(
    counts: ScheduleCounts, broken: Sequence[Schedule], silent: SilentSchedules
) -> Iterator[tuple[str, str]]:
    parts = (
        (counts.paused, "paused"),
        (counts.broken, "broken"),
        (counts.failing, "failing"),
        (counts.with_base, "run by Beat"),
    )
    found = ", ".join(f"{count:,} {state}" for count, state in parts if count)
    yield "number", f"{counts.total:,}" + (f", of which {found}" if found else "")
    yield "next", "-" if counts.next_ms is None else format_utc(counts.next_ms)
    if silent.count:
        until = format_utc(silent.until_ms)
        yield "silent", f"{silent.count:,}, until {until} at the latest: they ran up to then before the clock went back"
    for one in broken:
        yield "broken", f"{printable(one.name)}: {printable(one.note, PART_CUT)}"
    if counts.broken > len(broken):
        yield "broken", f"and {counts.broken - len(broken):,} more: `schedules list --broken`"


def _levels(snapshot: dict[str, Any]) -> Any:
    from rich.table import Table

    levels = Table("level", "tick", "interval", "buckets in use", "pending", title="levels", title_justify="left")
    for level in snapshot["levels"]:
        levels.add_row(
            str(level["level"]),
            f"{level['tick_ms']:,} ms",
            f"{level['interval_ms']:,} ms",
            str(len(level["buckets"])),
            f"{level['pending']:,}",
        )
    return levels


def instant(at_ms: int) -> str:
    """Return ISO 8601 in UTC; the position before everything is "the beginning"."""
    return format_utc(at_ms) if at_ms else "the beginning"
