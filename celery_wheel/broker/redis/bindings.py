"""The queues that are bound to an exchange: kombu's binding sets, read at most once a second.

::

    exchange "news"  ──SMEMBERS──►  { "a.*" SEP "^a\\.[^\\.]+$" SEP "mail",  … }       kept for 1 s
                                        │            │                │
      direct: equal to the routing key ─┘            │                └─ queue
      topic:  kombu's own pattern, matched from the start

Promise: the answer "no queue is bound" never comes from memory, only from reading the set anew; a removed binding is
noticed within the second. Source: ``lookup`` in kombu 5.7 ``transport/virtual/exchange.py``. Unlike kombu, which
raises, this module skips a member that has not three parts; it also skips an empty queue name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

#: A binding set may be used for this time after it was read.
KEPT_S = 1.0


@dataclass(slots=True)
class BindingTable:
    """The bindings of one exchange at one instant; ``fault`` is the reason where they could not be read."""

    read_at: float
    bindings: list[tuple[str, str, str]] = field(default_factory=list)  #: routing key, pattern, queue
    fault: str | None = None
    found: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)

    def queues(self, kind: str, routing_key: str) -> tuple[str, ...]:
        """Return the queues that get a message, each once, in a stable order."""
        found = self.found.get((kind, routing_key))
        if found is None:
            matches = _MATCHES[kind]
            bound = {queue for key, pattern, queue in self.bindings if queue and matches(key, pattern, routing_key)}
            found = self.found[kind, routing_key] = tuple(sorted(bound))
        return found


class Bindings:
    """The binding tables of exchanges, kept for ``KEPT_S``.

    Args:
        read: returns, for each of some exchange names, the members of its set or an error.
        sep: separates the parts of a member.
        monotonic: seconds, for the age of tables.
    """

    def __init__(
        self,
        read: Callable[[Sequence[str]], Sequence[Iterable[bytes] | Exception]],
        sep: str,
        monotonic: Callable[[], float],
    ) -> None:
        self._read = read
        self._sep = sep
        self._monotonic = monotonic
        self._tables: dict[str, BindingTable] = {}

    def tables(self, exchanges: Iterable[str], *, fresh: bool = False) -> dict[str, BindingTable]:
        """Return the tables of these exchanges; one read gets the missing and the old ones, or all if ``fresh``."""
        wanted = sorted(set(exchanges))
        if not wanted:
            return {}
        now = self._monotonic()
        kept = {name: table for name, table in self._tables.items() if now - table.read_at < KEPT_S}
        missing = [name for name in wanted if fresh or name not in kept]
        if missing:
            kept.update(zip(missing, map(self._table, [now] * len(missing), self._read(missing)), strict=True))
        # Replaced as a whole: another thread sees the old tables or the new ones, and unused exchanges are dropped.
        self._tables = kept
        return {name: kept[name] for name in wanted}

    def _table(self, now: float, members: Iterable[bytes] | Exception) -> BindingTable:
        if isinstance(members, Exception):
            return BindingTable(now, fault=str(members))
        table = BindingTable(now)
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
