"""How many shards a scheduler holds: as even as can be, and moving no more than that takes. Arithmetic only.

::

    7 shards, 3 schedulers      low 2, high 3      3 2 2
    one more joins              low 1, high 2      2 2 2 1      three move: one from each of the others … at most
    one leaves                  low 2, high 3      its shards go to those below high

A scheduler takes what is free until it has ``low``, and one more when nobody has less than that; nobody has to agree,
since the store gives a shard to one only. It gives a shard up when it has more than ``high``, or when it has the most
and somebody has less than ``low``: then it is the only one that does, so that no two give for one that lacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32


@dataclass(frozen=True, slots=True)
class Share:
    """``take``: shards to try for now. ``give``: the one to give up now."""

    take: frozenset[int] = frozenset()
    give: int | None = None


def share(me: str, alive: Sequence[str], holders: Mapping[int, str | None], held: Sequence[int]) -> Share:
    """What ``me`` is to do.

    Args:
        me: a name that no other scheduler has or had.
        alive: the schedulers that were heard of lately.
        holders: who holds each shard of the store, or held it last.
        held: the shards that ``me`` holds for certain.
    """
    schedulers = {*alive, me}
    low, rest = divmod(len(holders), len(schedulers))
    counts = Counter(dict.fromkeys(schedulers, 0))
    counts.update(holder for holder in holders.values() if holder in schedulers)
    counts[me] = len(held)
    lacks = min(counts.values()) < low
    free = any(holder not in schedulers for holder in holders.values())
    most = max(counts, key=lambda name: (counts[name], name))
    if len(held) > low + bool(rest) or (lacks and not free and most == me and len(held) > low):
        # The highest, since the periodic entries belong to shard 0.
        return Share(give=max(held))
    room = (low if lacks else low + bool(rest)) - len(held)
    # What nobody has comes first; others' shards are tried as well, since one may have died a moment ago. Each
    # scheduler has an order of its own, so that not all try for the same.
    wanted = sorted(
        holders.keys() - set(held),
        key=lambda shard: (holders[shard] in schedulers, crc32(f"{me} {shard}".encode())),
    )
    return Share(take=frozenset(wanted[: max(0, room)]))
