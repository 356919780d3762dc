"""The key names of kombu's Redis transport: queue and priority to list, exchange to binding set and topic.

::

    queue "mail", priority 7, steps 0 3 6 9, prefix "app:"    ──►  list   app:mail\\x06\\x166
    queue "mail", priority 0                                  ──►  list   app:mail
    exchange "news" (direct, topic)                           ──►  set    app:_kombu.binding.news
    exchange "all" (fanout), routing key "", database 0       ──►  topic  app:/0.all

Source: kombu 5.7 ``transport/redis.py`` (``_q_for_pri``, ``_get_publish_topic``, ``keyprefix_queue``) and
``transport/virtual/base.py`` (``_get_message_priority``). The options come from ``broker_transport_options``, which
must be the same in producers, workers and schedulers.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: kombu's own defaults.
PRIORITY_STEPS = (0, 3, 6, 9)
SEP = "\x06\x16"
FANOUT_PREFIX = "/{db}."
#: Options that name the keys in which kombu keeps unacknowledged messages.
UNACKED = ("unacked", "unacked_index", "unacked_mutex")
BINDINGS = "_kombu.binding."


@dataclass(frozen=True, slots=True)
class Layout:
    prefix: str = ""
    sep: str = SEP
    priority_steps: tuple[int, ...] = PRIORITY_STEPS
    fanout_prefix: str = "/0."
    fanout_patterns: bool = True
    deadletter_queue: str | None = None
    unacked: frozenset[str] = frozenset(UNACKED)

    @classmethod
    def from_options(cls, options: Mapping[str, Any], db: int) -> Layout:
        """Read transport options as a kombu channel does."""
        fanout_prefix = options.get("fanout_prefix", True)
        template = fanout_prefix if isinstance(fanout_prefix, str) else FANOUT_PREFIX
        return cls(
            prefix=options.get("global_keyprefix") or "",
            sep=options.get("sep", SEP),
            priority_steps=tuple(options.get("priority_steps", PRIORITY_STEPS)),
            fanout_prefix=template.format(db=db) if fanout_prefix else "",
            fanout_patterns=bool(options.get("fanout_patterns", True)),
            deadletter_queue=options.get("deadletter_queue"),
            unacked=frozenset(str(options.get(f"{name}_key", name)) for name in UNACKED),
        )

    def list_key(self, queue: str, priority: int | None) -> str:
        """Return the list for a message of this priority; as in kombu, 0 to 9, rounded down to a step."""
        steps = self.priority_steps
        step = steps[bisect(steps, max(0, min(priority or 0, 9))) - 1]
        return self._step_key(queue, step)

    def list_keys(self, queue: str) -> list[str]:
        """Return the lists of all priorities: when a queue expires, they expire together."""
        return [self._step_key(queue, step) for step in self.priority_steps]

    def binding_key(self, exchange: str) -> str:
        return f"{self.prefix}{BINDINGS}{exchange}"

    def is_kombus_own(self, queue: str) -> bool:
        """Whether kombu keeps another value under this name, so that a list there would stop its workers."""
        return queue in self.unacked or queue.startswith(BINDINGS)

    def topic(self, exchange: str, routing_key: str) -> str:
        """Return the PUB/SUB channel of a fanout exchange."""
        suffix = f"/{routing_key}" if routing_key and self.fanout_patterns else ""
        return f"{self.prefix}{self.fanout_prefix}{exchange}{suffix}"

    def _step_key(self, queue: str, step: int) -> str:
        return f"{self.prefix}{queue}{self.sep}{step}" if step else f"{self.prefix}{queue}"
