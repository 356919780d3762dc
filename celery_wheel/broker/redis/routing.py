"""Routing: the Redis lists and topics for a row's exchange and routing key, by kombu's rules.

A direct exchange has the queues bound with an equal routing key, a topic exchange those with a pattern that matches
from the start; a fanout is one topic; any other type is refused. A direct exchange without a match goes to
``deadletter_queue`` where the transport options name one. The answer "no queue is bound" comes only from reading the
set anew. Unlike kombu, which raises, this module skips a member that has not three parts, and an empty queue name.
Source: ``lookup`` in kombu 5.7 ``transport/virtual/exchange.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from celery_wheel.broker.redis.keys import Layout
from celery_wheel.store.model import Route

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
            bound = {queue for key, pattern, queue in self.bindings if _matches(kind, key, pattern, routing_key)}
            found = self.found[kind, routing_key] = tuple(sorted(bound - {""}))
        return found


class Bindings:
    """The binding tables of exchanges, kept for ``KEPT_S``; ``sep`` separates the parts of a member."""

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


def _matches(kind: str, key: str, pattern: str, routing_key: str) -> bool:
    if kind == "direct":
        return key == routing_key
    compiled = _compiled(pattern)
    return compiled is not None and compiled.match(routing_key) is not None


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except re.error:
        return None


@dataclass(slots=True)
class RedisRoute:
    """The lists or the topic of a route; where there is neither, ``refusal`` is the reason."""

    lists: tuple[bytes, ...] = ()
    topic: bytes | None = None
    expiring: tuple[bytes, ...] = ()  #: the lists of all priorities of the one queue with ``x-expires``
    refusal: str = ""


class RedisRouter:
    """The routes of rows, by kombu's key names and binding sets; no row goes to a queue that ``is_reserved``."""

    def __init__(self, layout: Layout, bindings: Bindings, is_reserved: Callable[[str], bool]) -> None:
        self._layout = layout
        self._is_reserved = is_reserved
        self._bindings = bindings

    def routes(self, targets: Iterable[Route]) -> dict[Route, RedisRoute]:
        """Return the routes of a chunk, with at most two reads of binding sets, however many it has."""
        wanted = list(dict.fromkeys(targets))  # in the order of the rows
        tables = self._bindings.tables(target.exchange for target in wanted if _needs_bindings(target))
        routes = {target: self._route(target, tables) for target in wanted}
        doubtful = [target for target in wanted if _needs_bindings(target) and routes[target].refusal]
        if doubtful:  # a queue may have been bound in the last second, and a refusal is final: read anew
            tables = self._bindings.tables((target.exchange for target in doubtful), fresh=True)
            routes.update({target: self._route(target, tables) for target in doubtful})
        return routes

    def _route(self, target: Route, tables: dict[str, BindingTable]) -> RedisRoute:
        try:
            if not target.exchange:
                if not target.routing_key:
                    return RedisRoute(refusal="it names neither an exchange nor a queue")
                return self._to_queues(target, (target.routing_key,))
            if target.exchange_type == "fanout":
                return RedisRoute(topic=self._layout.topic(target.exchange, target.routing_key).encode())
            if not _needs_bindings(target):
                kind = target.exchange_type
                return RedisRoute(
                    refusal=f"exchange {target.exchange!r} has type {kind!r}, which Redis does not support"
                )
            return self._bound(target, tables[target.exchange])
        except UnicodeEncodeError as error:
            return RedisRoute(refusal=f"its destination cannot be a name in Redis: {error}")

    def _bound(self, target: Route, table: BindingTable) -> RedisRoute:
        if table.fault:
            return RedisRoute(refusal=f"the bindings of exchange {target.exchange!r} cannot be read: {table.fault}")
        kind = target.exchange_type or "direct"
        queues = table.queues(kind, target.routing_key)
        if kind == "topic":
            queues = tuple(queue for queue in queues if queue != self._layout.deadletter_queue)
        elif not queues and self._layout.deadletter_queue:
            queues = (self._layout.deadletter_queue,)
        if not queues:
            return RedisRoute(
                refusal=f"no queue is bound to exchange {target.exchange!r} with routing key {target.routing_key!r}"
            )
        return self._to_queues(target, queues)

    def _to_queues(self, target: Route, queues: tuple[str, ...]) -> RedisRoute:
        for queue in queues:
            if self._is_reserved(queue) or self._layout.is_kombus_own(queue):
                return RedisRoute(refusal=f"queue {queue!r} is one of the wheel, of Celery or of kombu")
        expiring: list[bytes] = []
        if target.queue_expires_ms:
            # x-expires belongs to the row's own queue; for other bound queues it is unknown, here and in kombu.
            own = target.queue or (queues[0] if len(queues) == 1 else None)
            if own in queues:
                expiring = [key.encode() for key in self._layout.list_keys(own)]
        lists = tuple(self._layout.list_key(queue, target.priority).encode() for queue in queues)
        return RedisRoute(lists=lists, expiring=tuple(expiring))


def _needs_bindings(target: Route) -> bool:
    return bool(target.exchange) and target.exchange_type in ("", "direct", "topic")
