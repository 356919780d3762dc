"""The share of shards that a scheduler holds: as even as possible, with as few moves as possible. Arithmetic only.

::

    7 shards, 3 schedulers      low 2, high 3      3 2 2
    a scheduler joins           low 1, high 2      2 2 2 1      one shard moves
    a scheduler ends            low 2, high 3      3 2 2        the others take its shards

A scheduler takes shards until it has ``low``, and one more when no scheduler has fewer than ``low``. Schedulers need
not agree, since the store gives a shard to one holder only. A scheduler gives a shard up when it has more than
``high``, or when it has the most and another has fewer than ``low`` with no shard free: only one scheduler gives then,
so that two never give for the same want.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from zlib import crc32


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
    me: str, alive: Sequence[str], holders: Mapping[int, str | None], held: Sequence[int], role: Role = Role.ANY
) -> Share:
    """Return the shards that the scheduler ``me`` takes or gives up now.

    Args:
        me: a name that no other scheduler has or had.
        alive: the schedulers that were seen lately.
        holders: shard → its holder, or its last holder.
        held: the shards that ``me`` certainly holds.
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
    # Free shards come first. Shards of other schedulers follow, since a scheduler may have died a moment ago. Each
    # scheduler has an order of its own, so that not all try for the same shard.
    wanted = sorted(
        holders.keys() - set(held),
        key=lambda shard: (holders[shard] in others, crc32(f"{me} {shard}".encode())),
    )
    if role is Role.CHILD and 0 in wanted:
        wanted.remove(0)
    take = set(wanted[: max(0, room)])
    if role is Role.PARENT and 0 in wanted and holders[0] not in others:
        take.add(0)  # even without room, since the others that have room may be children
    return Share(take=frozenset(take))
