"""``celery -A proj wheel …``: what the wheel holds, for people and, with ``--json``, for programs.

Everything is read from the store, so any process that reaches it can ask, also while no scheduler runs. What
only the holder knows (levels, edge) is its last snapshot, with its age.

Imported on every ``celery`` call: the heavy imports are inside the commands.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

if TYPE_CHECKING:
    from celery_wheel.store.port import Store


@click.group(name="wheel")
@click.pass_context
@handle_preload_options  # type: ignore[untyped-decorator]  # celery carries no types
def wheel(ctx: click.Context) -> None:
    """See what waits in the wheel."""


@wheel.command(cls=CeleryCommand)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """Show each shard's holder, hand, pending tasks and levels.

    Exit code: 0 when every shard has a holder that was heard of in the last 5 seconds, 3 when one has not.
    """
    with _store(ctx) as (store, shards):
        found = [_shard_status(store, shard) for shard in range(shards)]
    if as_json:
        click.echo(json.dumps({"shards": found}))
    else:
        for shard in found:
            _print_shard(shard)
    ctx.exit(0 if all(shard["live"] for shard in found) else 3)


@wheel.command(cls=CeleryCommand)
@click.argument("shards", type=int)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def reshard(ctx: click.Context, shards: int, yes: bool) -> None:
    """Give the store SHARDS shards, while no scheduler runs; what waits moves along.

    Tasks with one key keep their order. With fewer shards, the history of those that are no more is forgotten.
    """
    from celery_wheel.errors import WheelError
    from celery_wheel.service import reshard_of

    if not yes:
        click.confirm(f"All schedulers are stopped, and are to have wheel_shards = {shards} then?", abort=True)
    try:
        done = reshard_of(ctx.obj.app, shards)
    except WheelError as error:
        raise click.ClickException(str(error)) from error
    click.echo(
        f"{done.before} shards were there, {done.after} are now; {done.moved:,} pending tasks moved, "
        f"{done.forgotten:,} rows of history were forgotten; set wheel_shards = {done.after} everywhere"
    )


@contextmanager
def _store(ctx: click.Context) -> Iterator[tuple[Store, int]]:
    from celery_wheel.conf import Conf
    from celery_wheel.errors import WheelError
    from celery_wheel.service import open_store_of

    conf = Conf(ctx.obj.app)
    try:
        store = open_store_of(conf, create=False)
        try:
            yield store, conf.shards
        finally:
            store.close()
    except WheelError as error:
        raise click.ClickException(str(error)) from error


#: A holder renews twice a second; one that was not heard of for this long is gone or stuck.
SILENT_MS = 5_000


def _shard_status(store: Store, shard: int) -> dict[str, Any]:
    state = store.state(shard)
    now_ms = time.time_ns() // 1_000_000
    age_ms = None if state.snapshot_at_ms is None else now_ms - state.snapshot_at_ms
    return {
        "shard": shard,
        "holder": state.holder,
        "epoch": state.epoch,
        "live": state.holder is not None and age_ms is not None and age_ms < SILENT_MS,
        "snapshot_age_ms": age_ms,
        "pending": sum(store.pending(shard).values()),
        "lanes": [{"lane": lane.lane, "hand": list(lane.hand), "cut": list(lane.cut)} for lane in store.lanes(shard)],
        "snapshot": state.snapshot,
    }


def _print_shard(shard: dict[str, Any]) -> None:
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError as error:
        raise click.ClickException("tables need rich: pip install 'celery-wheel[cli]', or use --json") from error
    console = Console()
    facts = Table(title=f"shard {shard['shard']}", show_header=False, title_justify="left")
    age_ms = shard["snapshot_age_ms"]
    heard = "never" if age_ms is None else f"{age_ms / 1000:.1f} s ago"
    facts.add_row("holder", f"{shard['holder'] or 'none'} (epoch {shard['epoch']}, heard of {heard})")
    facts.add_row("pending", f"{shard['pending']:,} that a scheduler has taken in")
    for lane in shard["lanes"]:
        facts.add_row(f"hand of lane {lane['lane']}", f"{_instant(lane['hand'][0])} (seq {lane['hand'][1]})")
    snapshot = shard["snapshot"] if shard["live"] else None
    if snapshot:
        facts.add_row("in memory", f"{snapshot['window_count']:,} tasks, {snapshot['window_bytes']:,} bytes")
        facts.add_row("next due", "nothing" if snapshot["next_due_ms"] is None else _instant(snapshot["next_due_ms"]))
        facts.add_row("dispatched", f"{snapshot['dispatched']:,} since this holder began")
        facts.add_row("rejected", f"{snapshot['rejected']:,} since this holder began")
    console.print(facts)
    if snapshot:
        levels = Table("level", "tick", "interval", "buckets in use", "pending", title="levels", title_justify="left")
        for level in snapshot["levels"]:
            levels.add_row(
                str(level["level"]),
                f"{level['tick_ms']:,} ms",
                f"{level['interval_ms']:,} ms",
                str(len(level["buckets"])),
                f"{level['pending']:,}",
            )
        console.print(levels)


def _instant(at_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds") if at_ms else "the beginning"
