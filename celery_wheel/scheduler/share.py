"""The share of shards that a scheduler holds: as even as possible, and handed over as rarely as possible.

::

    7 shards, 3 schedulers      low 2, high 3      3 2 2
    a scheduler joins           low 1, high 2      2 2 2 1      one shard is handed over
    a scheduler ends            low 2, high 3      3 2 2        the others take its shards

A scheduler takes shards until it has ``low``, and one more when no scheduler has fewer. Schedulers need not agree,
since the store gives a shard to one holder only. A scheduler gives a shard up when it has more than ``high``, or when
it has the most and another has fewer than ``low`` with no shard free: only one scheduler gives then. A scheduler that
does not reach the broker counts as dead, and gives all (see ``reach``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from zlib import crc32

from celery_wheel.engine.engine import Engine
from celery_wheel.engine.pool import Pool, Wait
from celery_wheel.errors import StoreError
from celery_wheel.scheduler.reach import BrokerReach
from celery_wheel.store.ports import Store
from celery_wheel.timing import Clock, SystemClock
from celery_wheel.values.log import get_logger


class Role(Enum):
    """The part of a scheduler with ``wheel_processes``: shard 0 stays with beat's own process, for its entries."""

    ANY = "one process alone"
    PARENT = "takes shard 0 whenever it is free"
    CHILD = "never takes shard 0"


@dataclass(frozen=True, slots=True)
class Share:
    """``take``: shards to try to acquire now. ``give``: the shard to give up now, or None."""

    take: frozenset[int] = frozenset()
    give: int | None = None


def share(
    me: str,
    alive: Sequence[str],
    holders: Mapping[int, str | None],
    held: Sequence[int],
    role: Role = Role.ANY,
    turn: int = 0,
) -> Share:
    """Return the shards that the scheduler ``me``, a name that no other has or had, takes or gives up now.

    Args:
        alive: the schedulers that were seen lately.
        holders: shard → its holder, or its last holder.
        held: the shards that ``me`` certainly holds.
        turn: a number that grows with each look.
    """
    schedulers = {*alive, me}
    low, rest = divmod(len(holders), len(schedulers))
    counts = Counter(dict.fromkeys(schedulers, 0))
    counts.update(holder for holder in holders.values() if holder in schedulers)
    counts[me] = len(held)
    lacks = min(counts.values()) < low
    others = schedulers - {me}  # a shard that the store gives to ``me``, and that is not held, was lost and is free
    free = any(holder not in others for shard, holder in holders.items() if shard not in held)
    most = max(counts, key=lambda name: (counts[name], name))
    if len(held) > low + bool(rest) or (lacks and not free and most == me and len(held) > low):
        # The highest shard, since the periodic entries belong to shard 0.
        return Share(give=max(held))
    room = (low if lacks else low + bool(rest)) - len(held)
    # Free shards come first. Shards of other schedulers follow, another one with each look: a scheduler may have died a
    # moment ago, or it lives and has lost one of its shards without a word. Each scheduler has an order of its own, so
    # that not all try for the same shard.
    order = sorted(holders.keys() - set(held), key=lambda shard: crc32(f"{me} {shard}".encode()))
    theirs = [shard for shard in order if holders[shard] in others]
    at = turn % max(1, len(theirs))
    wanted = [shard for shard in order if holders[shard] not in others] + theirs[at:] + theirs[:at]
    if role is Role.CHILD and 0 in wanted:
        wanted.remove(0)
    take = set(wanted[: max(0, room)])
    if role is Role.PARENT and 0 in wanted and holders[0] not in others:
        take.add(0)  # even without room, since the others that have room may be children
    return Share(take=frozenset(take))


logger = get_logger(__name__)

#: Seconds between two looks, and where no other scheduler was alive at the last one.
EVERY_S, ALONE_S = 0.5, 1.0

#: A stop waits no longer for a call that hangs.
STOP_S = 10.0

#: A scheduler that is silent for this long does not count. A mistake costs little: a shard has its lease.
SILENT_MS = 1_500


class Balance:
    def __init__(
        self,
        store: Store,
        name: str,
        engines: Sequence[Engine],
        clock: Clock | None = None,
        *,
        pool: Pool | None = None,
        role: Role = Role.ANY,
        reach: BrokerReach | None = None,
    ) -> None:
        self._store = store
        self._name = name
        self._engines = engines
        self._clock = clock or SystemClock()
        self._role = role
        self._reach = reach
        self._leaves = False
        self._is_alone = False
        engines[0].wanted = role is not Role.CHILD
        self._pool = pool or Pool()
        self._job = self._pool.job(self._run, "balance")
        self._looks = 0

    def start(self) -> None:
        self._try_once()  # before any engine acquires its shard
        self._job.wake()

    def stop(self) -> None:
        self._job.cancel()
        self._job.join(self._pool.now_s() + STOP_S)
        try:
            self._store.unregister_scheduler(self._name)
        except StoreError as error:  # the others notice its silence instead
            logger.info("%s", error, extra={"action": "balance"})

    def once(self) -> None:
        """Read the schedulers that are alive, and apply the share."""
        if self._reach is not None and self._leave(is_lost=self._reach.is_lost()):
            return
        alive = self._store.register_scheduler(self._name, self._clock.now_ms(), SILENT_MS)
        self._is_alone = set(alive) <= {self._name}
        if len(self._engines) == 1:
            return
        held = [engine.shard for engine in self._engines if engine.held]
        self._looks += 1
        found = share(self._name, alive, self._store.holders(), held, self._role, self._looks)
        # A lease may have run out since it was counted, where this process gets little processor time.
        kept = {*held, *found.take} - {found.give}
        for engine in self._engines:
            engine.wanted = engine.shard in kept
        if found.give is not None:
            logger.info(
                "shard %d is released for another scheduler; %d schedulers are alive",
                found.give,
                len(alive),
                extra={"action": "give", "shard": found.give},
            )

    def _leave(self, *, is_lost: bool) -> bool:
        """Leave the shards to the other schedulers if the broker is out of reach and others are alive."""
        left, self._leaves = self._leaves, False
        if is_lost:
            # One that stays never looks silent, and one that has left never looks alive: else, where the broker is
            # down for all, they would leave in turn.
            self._leaves = self._sees_others(silent=left) and (left or self._sees_others(silent=True))
        if self._leaves:
            for engine in self._engines:
                engine.wanted = False
        elif left:  # what the share says of further shards follows
            self._engines[0].wanted = self._role is not Role.CHILD
        if self._leaves is not left:
            logger.warning(
                "the broker does not answer this scheduler; it leaves its shards to the others"
                if self._leaves
                else "this scheduler takes its share of the shards again",
                extra={"action": "leave" if self._leaves else "return"},
            )
        return self._leaves

    def _sees_others(self, *, silent: bool) -> bool:
        """Return whether another scheduler is alive; ``silent``: the others take the shards of this one now."""
        now_ms = self._clock.now_ms()
        sign = (now_ms - SILENT_MS - 1, 0) if silent else (now_ms, SILENT_MS)
        return bool({*self._store.register_scheduler(self._name, *sign)} - {self._name})

    def _run(self) -> Wait:
        self._try_once()
        # With one shard the sign of life decides nothing but the names of control nodes.
        every_s = ALONE_S if self._is_alone or len(self._engines) == 1 else EVERY_S
        return Wait(every_s, every_s)

    def _try_once(self) -> None:
        try:
            self.once()
        except StoreError as error:
            self._engines[0].log.write_error(error, extra={"action": "balance"})
