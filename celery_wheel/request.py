"""A request to the holders: put into the store's inbox, answered in the store, taken back when nobody answers in time.

::

    request ─► every shard's inbox ─► each holder: done, too_late or unknown ─► the best of them, task by task
                    └ no answer within ``timeout_s``: taken back. In time: WheelUnavailable, nothing will happen there
                                                                Too late: the holder has just answered, and that counts

Every shard is asked, since a task's shard depends on the key with which it was sent, and a retry may have another.
Several hundred tasks go in one command, so a thousand verdicts take hardly longer than one.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from celery_wheel.errors import StoreError, WheelUnavailable
from celery_wheel.store.sql import SqlStore

#: Tasks in one command; a holder takes up to a thousand.
TASKS_AT_ONCE = 500

#: Seconds between two looks for an answer, at first and at most.
LOOK_FIRST_S, LOOK_MAX_S = 0.005, 0.05


class Verdict(StrEnum):
    """What became of a request, for certain."""

    DONE = "done"  #: it will not leave any more; or it leaves at the new time
    TOO_LATE = "too_late"  #: it was handed to the broker, or may have been
    UNKNOWN = "unknown"  #: it has not come to the wheel; a cancelled one will not leave if it comes within a day


_BETTER = {Verdict.UNKNOWN: 0, Verdict.TOO_LATE: 1, Verdict.DONE: 2}


@dataclass(slots=True)
class _Command:
    shard: int
    id: str
    names: list[str]
    item: int
    verdicts: Mapping[str, str] | None = None


@dataclass(slots=True)
class Request:
    """``kind``, ``options`` and ``list_name`` as ``celery_wheel.engine.inbox`` describes them."""

    store: SqlStore
    kind: str
    options: dict[str, Any]
    list_name: str = "task_ids"
    _commands: list[_Command] = field(default_factory=list)

    def ask(self, names: Sequence[str], timeout_s: float) -> dict[str, Verdict]:
        """The verdict on each. Raises WheelUnavailable, with those that are certain, when a holder did not answer."""
        names = list(dict.fromkeys(names))
        for start in range(0, len(names), TASKS_AT_ONCE):
            for shard in range(self.store.shards):
                self._put(shard, names[start : start + TASKS_AT_ONCE])
        self._await(timeout_s)
        silent = [command for command in self._commands if command.verdicts is None and not self._take_back(command)]
        return self._verdicts(names, silent, timeout_s)

    def _put(self, shard: int, names: list[str]) -> None:
        number = str(uuid.uuid4())
        payload = json.dumps({self.list_name: names, "id": number, **self.options}).encode()
        self._commands.append(_Command(shard, number, names, self.store.ask(shard, self.kind, payload)))

    def _await(self, timeout_s: float) -> None:
        until_s, pause_s = time.monotonic() + timeout_s, LOOK_FIRST_S
        while True:
            open_ = [command for command in self._commands if command.verdicts is None]
            for command in open_:
                command.verdicts = self.store.answer(command.id)
            if all(command.verdicts is not None for command in open_):
                return
            if time.monotonic() >= until_s:
                return
            time.sleep(pause_s)
            pause_s = min(LOOK_MAX_S, pause_s * 1.5)

    def _take_back(self, command: _Command) -> bool:
        """Whether there is an answer after all."""
        if self.store.take_back(command.item):
            return False
        command.verdicts = self.store.answer(command.id)
        if command.verdicts is None:
            raise StoreError(
                f"shard {command.shard} has taken the command {self.kind} and gave no answer; it may be that it could "
                "not be read: look for it among the rejected messages, and see that the scheduler has this version"
            )
        return True

    def _verdicts(self, names: Iterable[str], silent: list[_Command], timeout_s: float) -> dict[str, Verdict]:
        found: dict[str, Verdict] = {}
        for command in self._commands:
            for name, said in (command.verdicts or {}).items():
                verdict = Verdict(said)
                if name not in found or _BETTER[verdict] > _BETTER[found[name]]:
                    found[name] = verdict
        in_doubt = {name for command in silent for name in command.names if found.get(name) is not Verdict.DONE}
        if in_doubt:
            shards = ", ".join(map(str, sorted({command.shard for command in silent})))
            certain = {name: verdict for name, verdict in found.items() if name not in in_doubt}
            raise WheelUnavailable(
                f"nobody answered for shard {shards} within {timeout_s:g} s: no scheduler runs, or it cannot reach the "
                f"broker; the request ({self.kind}) was taken back, and nothing will happen there; start a scheduler: "
                "celery beat -S wheel",
                certain,
            )
        return {name: found[name] for name in names}
