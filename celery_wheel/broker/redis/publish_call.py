"""The keys and arguments of ``publish.lua`` for the rows of a chunk.

::

    rows 1 2 3 4 5     1, 3, 4 → list a      KEYS  offset  a  b  a a3 a6 a9
                       3 → list b too        ARGV  …  "1,3,4" 3 60000   "3" 1 0   "2" topic message
                       2 → topic                   message message message   message
                       5 → no destination          and, among the first: {"5": "no queue is bound to …"}

Within a list the order is that of the rows. A row's copies for several queues have delivery tags of their own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from celery_wheel.broker.errors import UnencodableMessage
from celery_wheel.broker.redis.routing import RedisRoute, RedisRouter
from celery_wheel.broker.redis.wire import WireWriter
from celery_wheel.store.model import Route, Row
from celery_wheel.values.dispatch_ids import dispatch_ids


@dataclass(slots=True)
class _List:
    expires_ms: int = 0  #: 0: never; as in kombu, the x-expires of the last row for a queue counts
    priorities: tuple[bytes, ...] = ()  #: all lists of a queue that expires
    ids: list[str] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class PublishCall:
    """Lists to push to and messages to broadcast; ``failed`` has the rows that fail before Redis is called."""

    lists: dict[bytes, _List] = field(default_factory=dict)
    broadcasts: list[bytes | str] = field(default_factory=list)  #: row id, topic, message, row id, …
    failed: dict[str, str] = field(default_factory=dict)

    def keys(self) -> list[bytes]:
        return [*self.lists, *(key for part in self.lists.values() for key in part.priorities)]

    def arguments(self) -> list[bytes | str | int]:
        lists = self.lists.values()
        priorities = max((len(part.priorities) for part in lists), default=0)
        arguments: list[bytes | str | int] = [
            json.dumps(self.failed),
            len(lists),
            priorities,
            len(self.broadcasts) // 3,
        ]
        for part in lists:
            arguments += (",".join(part.ids), len(part.ids), part.expires_ms)
        arguments += self.broadcasts
        for part in lists:
            arguments += part.messages
        return arguments


def publish_call(rows: Sequence[Row], router: RedisRouter, now_ms: int) -> PublishCall:
    """Route and encode the rows of a chunk."""
    call = PublishCall()
    routes = router.routes([row.route for row in rows])
    lists = {route: _lists(call, route, own) for route, own in routes.items()}
    write = WireWriter(now_ms).write
    tags = dispatch_ids(now_ms)
    for row in rows:
        row_id, route = str(row.id), row.route
        try:
            for part in lists[route]:
                part.messages.append(write(row, next(tags)))
                part.ids.append(row_id)
            topic = routes[route].topic
            if topic is not None:
                call.broadcasts += (row_id, topic, write(row, next(tags)))
            elif not lists[route]:
                call.failed[row_id] = routes[route].refusal
        except UnencodableMessage as error:
            call.failed[row_id] = str(error)
    call.lists = {key: part for key, part in call.lists.items() if part.messages}
    return call


def _lists(call: PublishCall, route: Route, own: RedisRoute) -> list[_List]:
    lists = [call.lists.setdefault(key, _List()) for key in own.lists]
    for key, part in zip(own.lists, lists, strict=True):
        if key in own.expiring:
            part.expires_ms, part.priorities = route.queue_expires_ms or 0, own.expiring
    return lists
