"""An edge for each broker: Redis, RabbitMQ (``amqp``), and any other transport of kombu (``virtual``).

This module has the names that producers and schedulers compute alike, without talking to each other::

    key, or else the task id     ──►   shard 3 of 4
    namespace "wheel", shard 3   ──►   wheel queue "wheel.3", after a transport's prefix (Redis: ``global_keyprefix``)
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32


def wheel_queue_name(namespace: str, shard: int) -> str:
    """Return the queue into which producers put the delayed messages of a shard."""
    return f"{namespace}.{shard}"


def is_own_name(namespace: str, queue: str, rename: Callable[[str], str] = str) -> bool:
    """Whether a name belongs to a wheel queue, its note or an offset key.

    Args:
        rename: returns the name that a transport gives to a queue; on some, ``wheel-0`` is another name of ``wheel.0``.
    """
    name, beginning = (rename(one).strip().casefold() for one in (queue, f"{namespace}."))
    rest = name.removeprefix(beginning)
    return rest != name and rest.removeprefix("offset.").removesuffix(".holder").isdecimal()


def shard_of(key: str | None, task_id: str, shards: int) -> int:
    """Return the shard of a task; tasks with the same key share a shard, so they are dispatched in order."""
    return crc32((key or task_id).encode()) % shards
