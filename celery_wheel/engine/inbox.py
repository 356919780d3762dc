"""What others may put into a shard's inbox, and how it is read.

::

    kind      payload
    message   one message, in the form in which producers put it into the wheel queue
    cancel    {"task_ids": [str, …], "id": UUID, "actor": str, "reason": str}; who wants no answer gives no id
    move      the same with {"eta_ms": int}; null: now
    requeue   as cancel
    replay    as cancel, with {"rows": [str, …]} in place of the task ids: the numbers of rows, in decimal digits

A command names MAX_TASKS tasks at most. Text that a store could not take (NUL, lone surrogates) makes it unreadable
here: inside a commit it would end the term, and since the item stays in the inbox, every term after it.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery_wheel.store.model import CANCEL, MOVE, REPLAY, REQUEUE, InboxItem, Message, Unreadable

Decode = Callable[[bytes], Message | Unreadable]

MAX_TASKS = 1_000

#: What a command's list is called, where it is not of task ids.
LISTS = {REPLAY: "rows"}

#: The database's largest whole number has 19 digits.
_ROW = re.compile(r"[0-9]{1,18}").fullmatch

#: The end of the year 9998, as for the eta of a message.
MAX_ETA_MS = 253_370_764_800_000


@dataclass(slots=True, frozen=True)
class Command:
    """Lay every row of the tasks to rest, or give it another due time, if it was not handed to the broker yet."""

    item_id: int
    kind: str
    task_ids: list[str]  #: of a replay, numbers of rows
    actor: str
    reason: str
    answer_to: str | None = None  #: under which id the verdicts are to be found
    eta_ms: int | None = None  #: of a move; None: now


def parse(item: InboxItem, decode: Decode) -> Message | Unreadable | Command:
    """An item as what it means; one that means nothing is kept as unreadable, with its bytes."""
    if item.kind == "message":
        return decode(item.payload)
    try:
        return _command(item)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        envelope_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"inbox {item.id} {item.kind}"))
        return Unreadable(envelope_id, f"inbox item {item.id} cannot be read: {error!r}", item.payload)


def _command(item: InboxItem) -> Command:
    if item.kind not in (CANCEL, MOVE, REQUEUE, REPLAY):
        raise ValueError(f"unknown kind {item.kind!r}; a newer celery-wheel may have written it")
    given = json.loads(item.payload)
    task_ids, answer_to, eta_ms = given[LISTS.get(item.kind, "task_ids")], given.get("id"), given.get("eta_ms")
    if type(task_ids) is not list or not 0 < len(task_ids) <= MAX_TASKS:
        raise TypeError(f"task_ids must be a list of 1 to {MAX_TASKS:,}, got {task_ids!r:.60}")
    if item.kind == REPLAY and not all(isinstance(one, str) and _ROW(one) for one in task_ids):
        raise TypeError(f"rows must be numbers in decimal digits, got {task_ids!r:.60}")
    words = {"actor": given.get("actor", ""), "reason": given.get("reason", "")}
    for name, word in [*words.items(), *(("task_ids", one) for one in task_ids)]:
        _check_text(name, word)
    if eta_ms is not None and (type(eta_ms) is not int or not 0 <= eta_ms < MAX_ETA_MS):
        raise ValueError(f"eta_ms must be milliseconds from 1970 to the end of 9998, got {eta_ms!r:.60}")
    if answer_to is not None:
        answer_to = str(uuid.UUID(answer_to))
    return Command(item.id, item.kind, list(dict.fromkeys(task_ids)), **words, answer_to=answer_to, eta_ms=eta_ms)


def _check_text(name: str, word: Any) -> None:
    if not isinstance(word, str) or "\0" in word:
        raise TypeError(f"{name} must be a text without NUL characters, got {word!r:.60}")
    word.encode()  # a lone surrogate is a UnicodeEncodeError, and that a ValueError
