"""What others may put into a shard's inbox, and how it is read.

::

    kind      payload
    message   one message, in the form in which producers put it into the wheel queue
    cancel    {"task_id": str, "actor": str, "reason": str}; the last two may be absent

Text that a store could not take (NUL, lone surrogates) makes a command unreadable here. Inside a commit it would end
the term, and since the item stays in the inbox, every term after it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from celery_wheel.store.model import InboxItem, Message, Unreadable

Decode = Callable[[bytes], Message | Unreadable]


@dataclass(slots=True, frozen=True)
class Cancel:
    """Lay every row of the task id to rest that was not handed to the broker yet."""

    item_id: int
    task_id: str
    actor: str
    reason: str


def parse(item: InboxItem, decode: Decode) -> Message | Unreadable | Cancel:
    """An item as what it means; one that means nothing is kept as unreadable, with its bytes."""
    if item.kind == "message":
        return decode(item.payload)
    try:
        if item.kind != "cancel":
            raise ValueError(f"unknown kind {item.kind!r}; a newer celery-wheel may have written it")
        command = json.loads(item.payload)
        task_id, actor, reason = command["task_id"], command.get("actor", ""), command.get("reason", "")
        for name, word in {"task_id": task_id, "actor": actor, "reason": reason}.items():
            if not isinstance(word, str) or "\0" in word:
                raise TypeError(f"{name} must be a text without NUL characters, got {word!r:.60}")
            word.encode()  # a lone surrogate is a UnicodeEncodeError, and that a ValueError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        envelope_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"inbox {item.id} {item.kind}"))
        return Unreadable(envelope_id, f"inbox item {item.id} cannot be read: {error!r}", item.payload)
    return Cancel(item.id, task_id, actor, reason)
