"""Which queues are bound to an exchange: kombu's binding sets, read at most once a second.

::

    exchange "news"  ──SMEMBERS──►  { "a.*" SEP "^a\\.[^\\.]+$" SEP "mail",  … }       kept for 1 s
                                        │            │                │
      direct: equal to the routing key ─┘            │                └─ queue
      topic:  kombu's own pattern, matched from the start

Promise: "no queue is bound" is never said from memory, only after reading the set anew; a binding that went away
is noticed within the second. Source: ``lookup`` in kombu 5.7 ``transport/virtual/exchange.py``; two things differ:
a member that is not of three parts is passed over (kombu raises), and so is an empty queue name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

#: How long a binding set may be used after it was read.
KEPT_S = 1.0


@dataclass(slots=True)
class Table:
    """The bindings of one exchange as read at one instant; ``fault``: why they could not be read."""

    read_at: float
    bindings: list[tuple[str, str, str]] = field(default_factory=list)  #: routing key, pattern, queue
    fault: str | None = None
    found: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)

    def queues(self, kind: str, routing_key: str) -> tuple[str, ...]:
        """The queues that get a message, each once, in an order that stays the same."""
        known = self.found.get((kind, routing_key))
        if known is None:
            matches = _MATCHES[kind]
            bound = {queue for key, pattern, queue in self.bindings if queue and matches(key, pattern, routing_key)}
            known = self.found[kind, routing_key] = tuple(sorted(bound))
        return known


class Bindings:
    """``read`` gets exchange names and answers, for each, the members of its set or an error."""

    def __init__(
        self,
        read: Callable[[Sequence[str]], Sequence[Iterable[bytes] | Exception]],
        sep: str,
        monotonic: Callable[[], float],
    ) -> None:
        self._read = read
        self._sep = sep
        self._monotonic = monotonic
        self._tables: dict[str, Table] = {}

    def tables(self, exchanges: Iterable[str], *, fresh: bool = False) -> dict[str, Table]:
        """The tables of these exchanges; those that are missing or old, or all if ``fresh``, are read in one go."""
        wanted = sorted(set(exchanges))
        if not wanted:
            return {}
        now = self._monotonic()
        kept = {name: table for name, table in self._tables.items() if now - table.read_at < KEPT_S}
        missing = [name for name in wanted if fresh or name not in kept]
        if missing:
            kept.update(zip(missing, map(self._table, [now] * len(missing), self._read(missing)), strict=True))
        # Replaced as a whole: another thread sees the old tables or the new ones, and old exchanges are forgotten.
        self._tables = kept
        return {name: kept[name] for name in wanted}

    def _table(self, now: float, members: Iterable[bytes] | Exception) -> Table:
        if isinstance(members, Exception):
            return Table(now, fault=str(members))
        table = Table(now)
        for member in members:
            match member.decode("utf-8", "replace").split(self._sep):
                case [routing_key, pattern, queue]:
                    table.bindings.append((routing_key, pattern, queue))
        return table


def _direct(key: str, pattern: str, routing_key: str) -> bool:
    return key == routing_key


def _topic(key: str, pattern: str, routing_key: str) -> bool:
    compiled = _compiled(pattern)
    return compiled is not None and compiled.match(routing_key) is not None


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except re.error:
        return None


_MATCHES = {"direct": _direct, "topic": _topic}
