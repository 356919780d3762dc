"""Blocks: messages of one kind as columns, from the pack of a bulk load to the rows of the table.

::

    pack ──► MessageBlock ──admitted──► NewBlock ──► executemany or COPY        no object for any of its messages
                └─► messages()             └─► rows()                           where one of them has to be looked at

A block is all or nothing: where one of its messages may be known, cancelled or due in another lane, or is due so soon
that it goes into the window, the block is taken apart. A message without a block costs 7 µs more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from celery_wheel.store.model import SHARD_BITS, Change, Message, NewRow, Unreadable
from celery_wheel.store.packing import split
from celery_wheel.store.route import Route


@dataclass(slots=True, eq=False)
class MessageBlock:
    """Messages that differ in these columns only; none of them watches a key or has a unique one."""

    like: Message  #: a message of the kind, for the values that all of them share
    envelope_ids: list[str]
    task_ids: list[str]
    eta_ms: list[int]
    created_ms: list[int]
    keys: list[str | None]
    expires_ms: list[int | None]
    plain: list[bytes]  #: headers, properties and body, joined (``celery_wheel.store.packing``)

    def __len__(self) -> int:
        return len(self.plain)

    @property
    def route(self) -> Route:
        return Route.of(self.like)

    @property
    def sizes(self) -> list[int]:
        """Bytes of each message's headers, properties and body: of ``plain`` without its two separators."""
        return [len(one) - 2 for one in self.plain]

    def messages(self) -> list[Message]:
        one, kind = self.like, self.route
        columns = zip(
            self.envelope_ids,
            self.task_ids,
            self.eta_ms,
            self.created_ms,
            self.keys,
            self.expires_ms,
            map(split, self.plain),
            strict=True,
        )
        return [
            Message(  # by position, which takes a third of the time
                envelope_id,
                task_id,
                kind.task,
                eta_ms,
                created_ms,
                kind.exchange,
                kind.exchange_type,
                kind.routing_key,
                kind.queue,
                kind.priority,
                key,
                expires_ms,
                kind.queue_expires_ms,
                headers,
                properties,
                body,
                one.misfire_ms,
            )
            for envelope_id, task_id, eta_ms, created_ms, key, expires_ms, (headers, properties, body) in columns
        ]


Arrival = Message | Unreadable | MessageBlock


@dataclass(slots=True, eq=False)
class NewBlock:
    """A block accepted in a lane: its rows have successive ids, from ``first`` on, and each id is the row's seq."""

    first: int
    lane: int
    due_ms: list[int]
    accepted_ms: int
    block: MessageBlock

    @property
    def ids(self) -> range:
        return range(self.first, self.first + (len(self.block) << SHARD_BITS), 1 << SHARD_BITS)

    def rows(self) -> list[NewRow]:
        columns = zip(self.ids, self.due_ms, self.block.messages(), strict=True)
        return [NewRow(id_, self.lane, due_ms, id_, self.accepted_ms, message) for id_, due_ms, message in columns]


def each(arrivals: Iterable[Arrival]) -> list[Message | Unreadable]:
    """Return the arrivals, those of blocks one by one."""
    apart = (one.messages() if isinstance(one, MessageBlock) else (one,) for one in arrivals)
    return list(chain.from_iterable(apart))


def new_rows(change: Change) -> list[NewRow]:
    """Return the new rows of a change, those of blocks too."""
    return [*change.rows, *chain.from_iterable(block.rows() for block in change.blocks)]
