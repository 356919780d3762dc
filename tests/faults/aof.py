"""Every message that was ever pushed to a queue of a Redis, from its own log (appendonly, never rewritten).

When Redis is killed, its worker may lose the message that it has just popped (kombu pops first and records second); the
log distinguishes such a task from one that was never published.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

#: Settings under which Redis keeps the whole log, with every write at once.
OPTIONS = {"appendonly": "yes", "appendfsync": "always", "auto_aof_rewrite_percentage": "0"}


def published(folder: Path, queue: str) -> Counter[str]:
    """Return task id → how often the wheel or a producer pushed it; kombu's own returns to the queue do not count."""
    found: Counter[str] = Counter()
    messages: set[str] = set()
    for path in sorted(folder.rglob("*.incr.aof")):
        with path.open("rb") as log:
            for name, key, *values in _commands(log):
                if name.upper() == b"LPUSH" and key == queue.encode():
                    for value in values:
                        message = json.loads(value)
                        tag = message["properties"]["delivery_tag"]
                        if tag not in messages:
                            messages.add(tag)
                            found[message["headers"]["id"]] += 1
    return found


def _commands(log: BinaryIO) -> Iterator[list[bytes]]:
    """Yield commands of two words at least. A kill may have cut the last command short."""
    while (head := log.readline()).endswith(b"\r\n"):
        if not head.startswith(b"*"):
            continue
        parts = []
        for _ in range(int(head[1:])):
            size = log.readline()
            if not size.endswith(b"\r\n"):
                return
            value = log.read(int(size[1:]) + 2)
            if not value.endswith(b"\r\n"):
                return
            parts.append(value[:-2])
        if len(parts) > 1:
            yield parts
