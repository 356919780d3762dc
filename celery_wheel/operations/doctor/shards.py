"""Shards have a live holder, are not behind, and show no defects; their wheel queues are read; clocks agree.

Due times are instants of the wall clock, so this host's clock is compared with those of Redis and PostgreSQL.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator

from celery_wheel.engine.port import Broker
from celery_wheel.errors import BrokerError
from celery_wheel.operations.doctor.installation import Finding, Installation, error, note, ok, split_remedy, warning
from celery_wheel.overview import ShardStatus
from celery_wheel.store.model import PAUSED, Message, Unreadable
from celery_wheel.values import __version__
from celery_wheel.values.format import format_duration, format_utc, printable
from celery_wheel.values.instants import now_ms

#: A task that is overdue for longer, while a scheduler runs, is a warning.
BEHIND_MS = 5_000
START = "Start one: celery -A proj beat -S wheel"


def check(site: Installation) -> Iterator[Finding]:
    yield from _paused(site)
    for shard in site.shards:
        yield _held(shard)
        if shard.live:
            yield from _behind(shard)
            yield from reported(shard)
        yield from _refused(site, shard)


def _held(one: ShardStatus) -> Finding:
    about = f"shard {one.shard}"
    if one.live:
        heard = f"last seen {format_duration(one.snapshot_age_ms)} ago"
        return ok(about, f"held by {one.holder} (epoch {one.epoch}, {heard}); {one.pending:,} pending")
    remedy = START
    if one.snapshot_age_ms is None:
        heard = "no scheduler has ever held it"
    elif one.holder is None:
        heard = f"its last holder released it {format_duration(one.snapshot_age_ms)} ago"
    else:
        heard = f"its holder {one.holder} was last seen {format_duration(one.snapshot_age_ms)} ago"
        remedy = (
            "If it runs, its log and its page /readyz say why it does not hold the shard; if not: "
            + "start one: celery -A proj beat -S wheel"
        )
    return error(about, f"{heard}: nothing is dispatched; {one.pending:,} pending", remedy)


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


def reported(one: ShardStatus) -> Iterator[Finding]:
    """Yield what the holder's snapshot tells."""
    about, snapshot = f"shard {one.shard}", one.snapshot or {}
    if one.clock_dispute:
        yield error(about, *split_remedy(one.clock_dispute))
    for problem in one.group_problems:
        yield warning(about, *split_remedy(problem))
    timed_out = snapshot.get("slots_timed_out", 0)
    if timed_out and not snapshot.get("slots_reported"):
        yield warning(
            about,
            f"all {timed_out:,} slots of groups that ended since its holder began ended by max_runtime: no worker "
            "reports the ends of runs",
            "Make the app of each worker with celery_wheel.Celery, or call celery_wheel.install(app), and set "
            "wheel_signing_keys there as in the scheduler; or wait for the first report, if the workers were killed.",
        )
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
        ("store_lost", "messages that the store had accepted are gone: it was rolled back"),
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


#: A scheduler reads its queue every 50 ms; a message that is older waits for a reason.
OLD_MS = 10_000


def check_queues(site: Installation) -> Iterator[Finding]:
    if site.broker is None:
        return
    for one in site.shards:
        try:
            yield from _queue(site, site.broker, one)
        except BrokerError as trouble:
            yield error(_about(one), *split_remedy(str(trouble)))


def growth(site: Installation) -> Iterator[Finding]:
    """Yield a finding for each wheel queue that no scheduler reads. Raises BrokerError."""
    for one in site.shards:
        if not one.live and site.broker is not None and (count := site.broker.depth(one.shard)):
            yield _unheld(one, count)


def _queue(site: Installation, broker: Broker, one: ShardStatus) -> Iterator[Finding]:
    count = broker.depth(one.shard)
    oldest = broker.oldest(one.shard) if count else None
    age_ms = now_ms() - oldest.created_ms if isinstance(oldest, Message) else None
    age = "" if age_ms is None else f", the oldest for {format_duration(max(0, age_ms))}"
    if not one.live and count:
        yield _unheld(one, count, age)
    elif age_ms is not None and age_ms > OLD_MS:
        yield warning(
            _about(one),
            f"{count:,} delayed tasks wait in the broker{age}: the holder of the shard does not accept them in time",
            "Read beat's log: the store is slow or full, or one shard is not enough (wheel_shards).",
        )
    else:
        yield ok(_about(one), f"{count:,} delayed tasks wait in the broker{age}")
    if age_ms is not None and -age_ms > site.conf.max_clock_skew_ms:
        yield warning(
            _about(one), f"a producer's clock is {format_duration(-age_ms)} ahead of this host's", "Check both clocks."
        )
    if isinstance(oldest, Unreadable):
        yield error(
            _about(one),
            f"its oldest message cannot be read and will be rejected: {printable(oldest.reason)}",
            "Let only celery-wheel send to this queue; update schedulers before producers.",
        )


def _unheld(one: ShardStatus, count: int, age: str = "") -> Finding:
    waiting = f"{count:,} delayed tasks wait in the broker for shard {one.shard} of the wheel{age}"
    return warning(_about(one), f"{waiting}, which no scheduler holds.", START)


def _about(one: ShardStatus) -> str:
    return f"queue {one.shard}"


#: An answer with a longer round trip is too inexact to compare.
MAX_ROUND_TRIP_MS = 1_000


def check_clocks(site: Installation) -> Iterator[Finding]:
    clocks: list[tuple[str, Callable[[], int | None]]] = []
    if site.broker is not None:
        clocks.append((site.broker_name, site.broker.now_ms))
    if site.store is not None:
        clocks.append((site.store.name, site.store.now_ms))
    if len(clocks) < 2:
        unseen = "the broker and the store" if not clocks else "the broker" if site.broker is None else "the store"
        text = f"this host's clock was not compared with that of {unseen}: there was no answer"
        yield note("clock", text, "Follow the remedies above, and run this again.")
    found = [one for name, clock in clocks if (one := _compared(name, clock, site.conf.max_clock_skew_ms)) is not None]
    yield from found
    if len(clocks) == 2 and not found:
        yield ok("clock", "neither broker nor store has a clock of its own: a wrong clock of this host is not found")


def _compared(name: str, clock: Callable[[], int | None], max_skew_ms: int) -> Finding | None:
    clock()  # the first call may have to connect
    sent_ms, sent_s = time.time() * 1_000, time.monotonic()
    its_ms = clock()
    took_ms = (time.monotonic() - sent_s) * 1_000
    if its_ms is None:
        return None
    skew_ms = round(sent_ms + took_ms / 2 - its_ms)
    if took_ms > MAX_ROUND_TRIP_MS:
        return warning(
            "clock",
            f"{name} took {format_duration(round(took_ms))} to answer with its time: too long to compare clocks",
            "Check the load of its host and the network, and run this again.",
        )
    text = (
        f"this host's clock is {format_duration(abs(skew_ms))} {'ahead of' if skew_ms > 0 else 'behind'} that of {name}"
    )
    remedy = "Check the time service (NTP) of both hosts; `timedatectl` shows whether a host's clock is synchronized."
    if abs(skew_ms) > max_skew_ms:
        return error("clock", f"{text}: a scheduler that starts here holds no shard (wheel_max_clock_skew)", remedy)
    # A smaller difference makes no task noticeably late.
    return warning("clock", text, remedy) if abs(skew_ms) > 1_000 else ok("clock", text)
