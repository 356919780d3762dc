"""The shards: each has a live holder, is not behind, and its holder counted no defects."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from celery_wheel.operations.doctor.finding import Finding, error, ok, split_remedy, warning
from celery_wheel.operations.doctor.installation import Installation
from celery_wheel.overview import ShardStatus
from celery_wheel.store.model import PAUSED
from celery_wheel.values import __version__
from celery_wheel.values.format import format_duration, format_utc, printable

#: A task that is overdue for longer, while a scheduler runs, is a warning.
BEHIND_MS = 5_000
START = "Start one: celery -A proj beat -S wheel"


def check(site: Installation) -> Iterator[Finding]:
    yield from _paused(site)
    for shard in site.shards:
        yield _held(shard)
        if shard.live:
            yield from _behind(shard)
            yield from _reported(shard)
        yield from _refused(site, shard)


def _held(one: ShardStatus) -> Finding:
    about = f"shard {one.shard}"
    if one.live:
        heard = f"last seen {format_duration(one.snapshot_age_ms)} ago"
        return ok(about, f"held by {one.holder} (epoch {one.epoch}, {heard}); {one.pending:,} pending")
    if one.snapshot_age_ms is None:
        heard = "no scheduler has ever held it"
    elif one.holder is None:
        heard = f"its last holder released it {format_duration(one.snapshot_age_ms)} ago"
    else:
        heard = f"its holder {one.holder} was last seen {format_duration(one.snapshot_age_ms)} ago"
    return error(about, f"{heard}: nothing is dispatched; {one.pending:,} pending", START)


def _paused(site: Installation) -> Iterator[Finding]:
    """Yield a finding for each pause, though every shard has it: a forgotten pause looks like a broken wheel."""
    paused = {(gate.scope, gate.name): gate for shard in site.shards for gate in shard.gates if gate.state == PAUSED}
    for gate in paused.values():
        why = f" ({printable(gate.reason)})" if gate.reason else ""
        named = "--all" if gate.for_all else f"--{gate.scope} {shlex.quote(printable(gate.name))}"
        yield warning(
            "paused",
            f"{printable(gate.what)} is paused since {format_utc(gate.at_ms)} by {printable(gate.actor)}{why}: "
            "nothing of it is dispatched",
            f"To resume dispatch: celery -A proj wheel resume {named}",
        )


def _behind(one: ShardStatus) -> Iterator[Finding]:
    if one.behind_ms > BEHIND_MS:
        yield warning(
            f"shard {one.shard}",
            f"it is {format_duration(one.behind_ms)} behind: tasks that were due then are not dispatched",
            "Read beat's log; the broker refuses, a disk is full, or one shard is not enough (wheel_shards).",
        )


def _reported(one: ShardStatus) -> Iterator[Finding]:
    about, snapshot = f"shard {one.shard}", one.snapshot or {}
    if one.clock_dispute:
        yield error(about, *split_remedy(one.clock_dispute))
    for job in snapshot.get("stuck_jobs") or ():
        yield error(
            about,
            f"in its holder {printable(job)}",
            "If the store and the broker answer, restart the scheduler; a standby takes the shard.",
        )
    for name, text in (
        ("guard_trips", "times the store had other rows than the holder was about to dispatch"),
        ("rollbacks", "times the broker was found to have lost writes"),
        ("emptied", "times the broker was found to be emptied"),
        ("process_ends", "times a process of the scheduler ended unexpectedly (wheel_processes)"),
    ):
        if snapshot.get(name):
            yield warning(about, f"{snapshot[name]} {text}, since its holder began", "Read beat's log.")
    version = snapshot.get("version")
    if version != __version__:
        yield warning(
            about,
            f"its holder runs celery-wheel {printable(version or 'of an older version')}, this is {__version__}",
            "Install the same version everywhere, schedulers first.",
        )


def _refused(site: Installation, one: ShardStatus) -> Iterator[Finding]:
    targets = {lane["lane"]: lane["target"] for lane in one.lanes if lane["target"] and lane["scope"] is None}
    if not targets or site.store is None:
        return
    _, waiting = site.store.browse.lanes(one.shard)
    for lane in sorted(waiting.keys() & targets):
        yield warning(
            f"shard {one.shard}",
            f"tasks for {targets[lane]} wait: that queue refuses them for now; the scheduler tries it again",
            "Let its consumers empty it, or raise its limit.",
        )
