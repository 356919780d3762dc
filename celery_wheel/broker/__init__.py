"""The names that producers and schedulers compute alike, without talking to each other. Standard library only.

::

    key, or else the task id     ──►   shard 3 of 4
    namespace "wheel", shard 3   ──►   wheel queue "wheel.3", after a transport's prefix (Redis: ``global_keyprefix``)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
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


#: Names of Celery's and kombu's own. A message there would be obeyed as a command, taken for an event or a result, or
#: stop kombu's workers by a key of another type.
_RESERVED = re.compile(
    r"""
    (.*[^0-9a-z])?pidbox                        # remote control, and its answers
    | celeryev([^0-9a-z].*)?                    # events
    | .*_kombu\.binding.*                       # on Redis, the queues of an exchange, and their deadlines
    | (.*[:/.|])?unacked(_index|_mutex)?        # on Redis, what workers hold
    | (.*[:/.|])?celery-task(set)?-meta-.*      # on Redis, results (of rpc://: a bare UUID, as a tenant's queue may be)
    | amq\.(gen|rabbitmq\.).*                   # on RabbitMQ, queues that a server has named, and its own
    """,
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)

#: kombu's separator between a queue and its priority in the name of a list.
_SEP = "\x06\x16"


def is_reserved(namespace: str, name: str) -> bool:
    """Whether no task may have this queue or exchange as its destination: it is the wheel's, Celery's or kombu's."""
    queue = name.partition(_SEP)[0].strip()
    return is_own_name(namespace, queue) or _RESERVED.fullmatch(queue) is not None


@lru_cache(4_096)
def reserved_name(namespace: str, exchange: str, routing_key: str, queue: str | None) -> str | None:
    """Return the name in a destination that is reserved; None for a good destination."""
    return next((one for one in (exchange or routing_key, queue or "") if is_reserved(namespace, one)), None)


def shard_of(key: str | None, task_id: str, shards: int) -> int:
    """Return the shard of a task; tasks with the same key share a shard, so they are dispatched in order."""
    return crc32((key or task_id).encode()) % shards
