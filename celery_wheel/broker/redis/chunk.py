"""A chunk of rows as the keys and arguments of ``publish.lua``.

::

    rows 1 2 3 4 5     1, 3, 4 → list a      KEYS  offset  a  b  a a6
                       3 → list b too        ARGV  …  "1,3,4" 3   "3" 1   60000 60000   "2" topic message
                       2 → topic                   message message message   message
                       5 → nowhere                 and, among the first: {"5": "no queue is bound to …"}

Within a list the order is that of the rows. A row's copies for several queues have delivery tags of their own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from celery_wheel.broker.redis.routing import Route, Router, Target, target_of
from celery_wheel.broker.redis.wire import Unwritable, WireWriter, delivery_tags
from celery_wheel.store.model import Row


@dataclass(slots=True)
class _List:
    ids: list[str] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class Chunk:
    """What is to be pushed, published and set to expire; ``refused`` is known before Redis is asked."""

    lists: dict[bytes, _List] = field(default_factory=dict)
    expiring: dict[bytes, int] = field(default_factory=dict)
    broadcasts: list[bytes | str] = field(default_factory=list)  #: row id, topic, message, row id, …
    refused: dict[str, str] = field(default_factory=dict)

    def keys(self) -> list[bytes]:
        return [*self.lists, *self.expiring]

    def arguments(self) -> list[bytes | str | int]:
        arguments: list[bytes | str | int] = [
            json.dumps(self.refused),
            len(self.lists),
            len(self.expiring),
            len(self.broadcasts) // 3,
        ]
        for to in self.lists.values():
            arguments += (",".join(to.ids), len(to.ids))
        arguments += self.expiring.values()
        arguments += self.broadcasts
        for to in self.lists.values():
            arguments += to.messages
        return arguments


def make_chunk(rows: Sequence[Row], router: Router, now_ms: int) -> Chunk:
    chunk = Chunk()
    targets = list(map(target_of, rows))
    routes = router.routes(targets)
    lists = {target: _open(chunk, target, route) for target, route in routes.items()}
    write = WireWriter(now_ms).write
    tags = delivery_tags()
    for row, target in zip(rows, targets, strict=True):
        row_id = str(row.id)
        try:
            for to in lists[target]:
                to.messages.append(write(row, next(tags)))
                to.ids.append(row_id)
            topic = routes[target].topic
            if topic is not None:
                chunk.broadcasts += (row_id, topic, write(row, next(tags)))
            elif not lists[target]:
                chunk.refused[row_id] = routes[target].refusal
        except Unwritable as error:
            chunk.refused[row_id] = str(error)
    chunk.lists = {key: to for key, to in chunk.lists.items() if to.messages}
    return chunk


def _open(chunk: Chunk, target: Target, route: Route) -> list[_List]:
    # The last word on a queue's x-expires wins, as in kombu.
    chunk.expiring.update(dict.fromkeys(route.expiring, target.queue_expires_ms or 0))
    return [chunk.lists.setdefault(key, _List()) for key in route.lists]
