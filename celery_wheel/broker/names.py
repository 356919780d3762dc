"""The names that producers and schedulers must agree on without talking to each other. Standard library only.

::

    namespace "wheel", shard 3   ──►   wheel queue "wheel.3"

A queue name is as kombu knows it: a transport's own prefix (Redis: ``global_keyprefix``) comes before it.
"""

from __future__ import annotations


def wheel_queue_name(namespace: str, shard: int) -> str:
    """The queue into which producers put the delayed messages of a shard."""
    return f"{namespace}.{shard}"
