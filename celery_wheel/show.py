"""Figures as people read them in a terminal: tables, by rich, or one JSON object for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from celery_wheel.present import seen, utc
from celery_wheel.status import ShardStatus

if TYPE_CHECKING:
    from rich.console import Console

EXIT_LIVE, EXIT_SILENT = 0, 3


def report(shards: Sequence[ShardStatus], *, as_json: bool) -> tuple[str, int]:
    """The text, and the exit code: 3 while a shard has no holder that was heard of lately.

    Raises ImportError, with what to install, where tables are wanted and rich is not there.
    """
    code = EXIT_LIVE if all(shard.live for shard in shards) else EXIT_SILENT
    if as_json:
        return json.dumps({"shards": [shard.as_dict() for shard in shards]}), code
    try:
        from rich.console import Console
    except ImportError as error:
        raise ImportError("tables need rich: pip install 'celery-wheel[cli]', or use --json") from error
    console = Console()
    with console.capture() as captured:
        for shard in shards:
            _print_shard(console, shard)
    return captured.get().rstrip("\n"), code


def _print_shard(console: Console, shard: ShardStatus) -> None:
    from rich.table import Table
    from rich.text import Text

    facts = Table(title=f"shard {shard.shard}", show_header=False, title_justify="left")
    heard = "never" if shard.snapshot_age_ms is None else f"{shard.snapshot_age_ms / 1000:.1f} s ago"
    facts.add_row("holder", f"{shard.holder or 'none'} (epoch {shard.epoch}, heard of {heard})")
    facts.add_row("pending", f"{shard.pending:,} that a scheduler has taken in")
    facts.add_row("next due", "nothing" if shard.next_due_ms is None else instant(shard.next_due_ms))
    facts.add_row("behind", f"{shard.behind_ms / 1000:.1f} s" if shard.behind_ms else "no")
    if shard.clock_dispute:
        facts.add_row("clock", Text(f"disputed: {shard.clock_dispute}"))
    for lane in shard.lanes:
        waits = (
            f", waits for {seen(lane['target'])}"
            if lane["target"]
            else ", beside the main lane"
            if lane["lane"]
            else ""
        )
        offset = f"{instant(lane['offset'][0])} (seq {lane['offset'][1]}){waits}"
        facts.add_row("offset", Text(offset))  # a queue's name may hold rich's markup
    for gate in shard.gates:
        facts.add_row(gate.state, Text(f"{seen(gate.what)}, since {utc(gate.at_ms)}, by {seen(gate.actor)}"))
    snapshot = shard.snapshot if shard.live else None
    if snapshot:
        facts.add_row("in memory", f"{snapshot['window_count']:,} tasks, {snapshot['window_bytes']:,} bytes")
        facts.add_row("dispatched", f"{snapshot['dispatched']:,} since this holder began")
        facts.add_row("rejected", f"{snapshot['rejected']:,} since this holder began")
    console.print(facts)
    if snapshot:
        console.print(_levels(snapshot))


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
    """ISO 8601 in UTC; the position before everything is "the beginning"."""
    return utc(at_ms) if at_ms else "the beginning"
