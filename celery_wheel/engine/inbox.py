"""What others may put into a shard's inbox, and how it is read.

::

    kind      payload
    message   one message, in the form in which producers put it into the wheel queue
    cancel    {"task_ids": [str, …], "id": UUID, "actor": str, "reason": str}; who wants no answer gives no id;
              {"for_good": true}: what left already does not leave once more either, as a retry within a day
    move      the same, but for_good, with {"eta_ms": int}; null: now
    requeue   as cancel
    replay    as cancel, with {"rows": [str, …]} in place of the task ids: the numbers of rows, in decimal digits
    complete  {"keys": [str, …], "how": "cancel" or "run", "id": UUID, "actor": str, "reason": str}
    pause     {"gates": ["queue:mail", "task:app.heavy", "all:"], and id, actor, reason as above}
    resume    the same with {"per_ms": int}: what had gathered leaves evenly in that time; null: at once

A command names MAX_NAMES tasks or keys at most. Text that a store could not take (NUL, lone surrogates) makes it
unreadable here: inside a commit it would end the term, and since the item stays in the inbox, every term after it.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery_wheel.store.model import (
    CANCEL,
    COMPLETE,
    MOVE,
    PAUSE,
    REPLAY,
    REQUEUE,
    RESUME,
    InboxItem,
    Message,
    Unreadable,
)

Decode = Callable[[bytes], Message | Unreadable]

MAX_NAMES = 1_000

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
    for_good: bool = False  #: of a cancel: also what left already is held back when it comes once more
    per_ms: int | None = None  #: of a resume; None: at once


@dataclass(slots=True, frozen=True)
class Completion:
    """Complete every task that watches one of the keys, if it was not handed to the broker yet."""

    item_id: int
    keys: list[str]
    run: bool  #: at once; else they are cancelled
    actor: str
    reason: str
    answer_to: str | None = None  #: under which id the counts are to be found


def parse(item: InboxItem, decode: Decode) -> Message | Unreadable | Command | Completion:
    """An item as what it means; one that means nothing is kept as unreadable, with its bytes."""
    if item.kind == "message":
        return decode(item.payload)
    try:
        return _completion(item) if item.kind == COMPLETE else _command(item)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        envelope_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"inbox {item.id} {item.kind}"))
        return Unreadable(envelope_id, f"inbox item {item.id} cannot be read: {error!r}", item.payload)


def _command(item: InboxItem) -> Command:
    if item.kind in (PAUSE, RESUME):
        return _gate_command(item)
    if item.kind not in (CANCEL, MOVE, REQUEUE, REPLAY):
        raise ValueError(f"unknown kind {item.kind!r}; a newer celery-wheel may have written it")
    given = json.loads(item.payload)
    task_ids, eta_ms = _names(given, LISTS.get(item.kind, "task_ids")), given.get("eta_ms")
    if item.kind == REPLAY and not all(map(_ROW, task_ids)):
        raise ValueError(f"rows must be numbers in decimal digits, got {task_ids!r:.60}")
    if eta_ms is not None and (type(eta_ms) is not int or not 0 <= eta_ms < MAX_ETA_MS):
        raise ValueError(f"eta_ms must be milliseconds from 1970 to the end of 9998, got {eta_ms!r:.60}")
    for_good = given.get("for_good", False) is True
    return Command(item.id, item.kind, task_ids, *_words(given), _answer_to(given), eta_ms, for_good=for_good)


def _completion(item: InboxItem) -> Completion:
    given = json.loads(item.payload)
    keys, how = _names(given, "keys"), given.get("how", "cancel")
    if how not in ("cancel", "run"):
        raise ValueError(f'how must be "cancel" or "run", got {how!r:.60}')
    return Completion(item.id, keys, how == "run", *_words(given), _answer_to(given))


def _names(given: dict[str, Any], list_name: str) -> list[str]:
    names = given[list_name]
    if type(names) is not list or not 0 < len(names) <= MAX_NAMES:
        raise TypeError(f"{list_name} must be a list of 1 to {MAX_NAMES:,}, got {names!r:.60}")
    for name in names:
        _check_text(list_name, name)
    return list(dict.fromkeys(names))


def _words(given: dict[str, Any]) -> tuple[str, str]:
    """Who asks, and why."""
    words = {"actor": given.get("actor", ""), "reason": given.get("reason", "")}
    for name, word in words.items():
        _check_text(name, word)
    return words["actor"], words["reason"]


def _answer_to(given: dict[str, Any]) -> str | None:
    answer_to = given.get("id")
    return None if answer_to is None else str(uuid.UUID(answer_to))


def _gate_command(item: InboxItem) -> Command:
    given = json.loads(item.payload)
    gates, per_ms = _names(given, "gates"), given.get("per_ms")
    for gate in gates:
        if gate != "all:" and not gate.startswith(("queue:", "task:")):
            raise ValueError(f"gates must be all:, queue:… or task:…, got {gate!r:.60}")
    if per_ms is not None and (type(per_ms) is not int or not 0 < per_ms < MAX_ETA_MS):
        raise ValueError(f"per_ms must be a time in milliseconds, got {per_ms!r:.60}")
    return Command(item.id, item.kind, gates, *_words(given), _answer_to(given), per_ms=per_ms)


def _check_text(name: str, word: Any) -> None:
    if not isinstance(word, str) or "\0" in word:
        raise TypeError(f"{name} must be a text without NUL characters, got {word!r:.60}")
    word.encode()  # a lone surrogate is a UnicodeEncodeError, and that a ValueError
