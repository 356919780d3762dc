"""Each shard: is somebody at work, is it behind, and what did its holder say of itself."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from celery_wheel import __version__
from celery_wheel.doctor.finding import Finding, error, ok, warning
from celery_wheel.doctor.site import Site
from celery_wheel.present import duration, seen, utc
from celery_wheel.status import ShardStatus
from celery_wheel.store.model import PAUSED

#: A task that is overdue for longer, while a scheduler is at work, is worth a look.
BEHIND_MS = 5_000
START = "Start one: celery -A <project> beat"


def check(site: Site) -> Iterator[Finding]:
    yield from _paused(site)
    for shard in site.shards:
        yield _held(shard)
        if shard.live:
            yield from _behind(shard)
            yield from _said(shard)
        yield from _refused(site, shard)


def _held(one: ShardStatus) -> Finding:
    about = f"shard {one.shard}"
    if one.live:
        heard = f"heard of {duration(one.snapshot_age_ms)} ago"
        return ok(about, f"held by {one.holder} (epoch {one.epoch}, {heard}); {one.pending:,} pending")
    if one.snapshot_age_ms is None:
        heard = "no scheduler has ever held it"
    elif one.holder is None:
        heard = f"its last holder gave it up, {duration(one.snapshot_age_ms)} ago"
    else:
        heard = f"its holder {one.holder} was last heard of {duration(one.snapshot_age_ms)} ago"
    return error(about, f"{heard}: nothing is dispatched; {one.pending:,} pending", START)


def _paused(site: Site) -> Iterator[Finding]:
    """Each once, though every shard has it. What nobody remembers to have paused looks like a broken wheel."""
    paused = {(gate.scope, gate.name): gate for shard in site.shards for gate in shard.gates if gate.state == PAUSED}
    for gate in paused.values():
        why = f" ({seen(gate.reason)})" if gate.reason else ""
        named = "--all" if gate.for_all else f"--{gate.scope} {shlex.quote(seen(gate.name))}"
        yield warning(
            "paused",
            f"{seen(gate.what)} is paused since {utc(gate.at_ms)} by {seen(gate.actor)}{why}: nothing of it leaves",
            f"When it is to go on: celery -A <project> wheel resume {named}",
        )


def _behind(one: ShardStatus) -> Iterator[Finding]:
    if one.behind_ms > BEHIND_MS:
        yield warning(
            f"shard {one.shard}",
            f"it is {duration(one.behind_ms)} behind: what was due then has not left",
            "Look into beat's log; a broker that refuses, a full disk, or more than one shard can dispatch do this.",
        )


def _said(one: ShardStatus) -> Iterator[Finding]:
    about, snapshot = f"shard {one.shard}", one.snapshot or {}
    if one.clock_dispute:
        what, _, remedy = one.clock_dispute.rpartition("; ")
        yield error(about, what, remedy[:1].upper() + remedy[1:])
    for name, text in (
        ("guard_trips", "times the store had other rows than the holder was about to send"),
        ("rollbacks", "times the broker was found to have lost writes"),
    ):
        if snapshot.get(name):
            yield warning(about, f"{snapshot[name]} {text}, since its holder began", "Look into beat's log.")
    version = snapshot.get("version")
    if version != __version__:
        yield warning(
            about,
            f"its holder runs celery-wheel {seen(version or 'of an older version')}, this is {__version__}",
            "Install the same version everywhere, schedulers first.",
        )


def _refused(site: Site, one: ShardStatus) -> Iterator[Finding]:
    targets = {lane["lane"]: lane["target"] for lane in one.lanes if lane["target"] and lane["scope"] is None}
    if not targets or site.store is None:
        return
    _, waiting = site.store.browse.standing(one.shard)
    for lane in sorted(waiting.keys() & targets):
        yield warning(
            f"shard {one.shard}",
            f"tasks for {targets[lane]} wait: that queue takes none for now, and is tried again",
            "Let its consumers empty it, or raise its limit.",
        )
