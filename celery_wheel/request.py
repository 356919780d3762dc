"""A request to the holders: put into the store's inbox, answered in the store, taken back when nobody answers in time.

::

    request ─► every shard's inbox ─► each holder: done, too_late or unknown ─► the best of them, task by task
                    └ no answer within ``timeout_s``: taken back. In time: WheelUnavailable, nothing will happen there
                                                                Too late: the holder has just answered, and that counts

A request that is part of a transaction of the caller's comes to the inboxes with its commit; ``Pending`` waits then.

Every shard is asked, since a task's shard depends on the key with which it was sent, and a retry may have another.
Several hundred tasks go in one command, so a thousand verdicts take hardly longer than one. Keys go the same way, and
what the shards say of one is added up.
"""

from __future__ import annotations

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from celery_wheel.errors import NotCommitted, StoreError, WheelUnavailable
from celery_wheel.store.sql import SqlStore

#: Tasks in one command; a holder takes up to a thousand.
TASKS_AT_ONCE = 500

#: A holder that lives answers within a fraction of a second, and a takeover takes up to three.
TIMEOUT_S = 10.0

#: Seconds between two looks for an answer, at first and at most.
LOOK_FIRST_S, LOOK_MAX_S = 0.005, 0.05


class Verdict(StrEnum):
    """What became of a request, for certain."""

    DONE = "done"  #: it will not leave any more; or it leaves at the new time
    TOO_LATE = "too_late"  #: it was handed to the broker, or may have been
    UNKNOWN = "unknown"  #: it has not come to the wheel; a cancelled one will not leave if it comes within a day


@dataclass(frozen=True, slots=True)
class Completed:
    """What became of the tasks that watched a key; true if any was completed by this request."""

    done: int  #: cancelled, or let run at once
    too_late: int  #: were handed to the broker by their time, or may have been

    def __bool__(self) -> bool:
        return self.done > 0


Said = TypeVar("Said")

_BETTER = {Verdict.UNKNOWN: 0, Verdict.TOO_LATE: 1, Verdict.DONE: 2}


@dataclass(slots=True)
class _Command:
    shard: int
    id: str
    names: list[str]
    item: int
    payload: bytes
    verdicts: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Request(ABC, Generic[Said]):
    """``kind``, ``options`` and ``list_name`` as ``celery_wheel.engine.inbox`` describes them.

    ``store`` is asked for when it is needed: within a transaction nothing need be read.
    """

    open_store: Callable[[], SqlStore]
    kind: str
    options: dict[str, Any]
    list_name: str = "task_ids"
    turn: Callable[[], None] | None = None  #: called instead of waiting, where the asker's own thread is the holder's
    _commands: list[_Command] = field(default_factory=list)
    _names: list[str] = field(default_factory=list)

    @abstractmethod
    def _found(self, names: Sequence[str]) -> dict[str, Said]:
        """What the holders that answered have said of each."""

    @abstractmethod
    def _in_doubt(self, found: Mapping[str, Said], unanswered: set[str]) -> set[str]:
        """Of which names more could be said by those that did not answer."""

    @abstractmethod
    def _certain(self, found: Mapping[str, Said], in_doubt: set[str]) -> dict[str, Said]:
        """What holds all the same."""

    def ask(self, names: Sequence[str], timeout_s: float) -> dict[str, Said]:
        """The verdict on each. Raises WheelUnavailable, with those that are certain, when a holder did not answer.

        Whoever is interrupted (Ctrl-C, a worker's soft time limit) has taken back what was not carried out yet.
        """
        try:
            self.put(names, self.store.shards, self.store.ask)
            return self.result(timeout_s)
        except WheelUnavailable:
            raise
        except BaseException as error:
            self._give_up(error)
            raise

    def put(self, names: Sequence[str], shards: int, ask: Callable[[int, str, bytes], int]) -> None:
        """Into each shard's inbox; ``ask`` as ``store.ask``."""
        self._names = list(dict.fromkeys(names))
        for start in range(0, len(self._names), TASKS_AT_ONCE):
            part = self._names[start : start + TASKS_AT_ONCE]
            for shard in range(shards):
                number = str(uuid.uuid4())
                payload = json.dumps({self.list_name: part, "id": number, **self.options}).encode()
                self._commands.append(_Command(shard, number, part, ask(shard, self.kind, payload), payload))

    def result(self, timeout_s: float) -> dict[str, Said]:
        """The verdict on each name that was put."""
        self._await(timeout_s)
        silent = [command for command in self._commands if command.verdicts is None and not self._take_back(command)]
        found = self._found(self._names)
        in_doubt = self._in_doubt(found, {name for command in silent for name in command.names})
        if in_doubt:
            raise self._unavailable(silent, timeout_s, self._certain(found, in_doubt))
        return {name: found[name] for name in self._names}

    @property
    def store(self) -> SqlStore:
        return self.open_store()

    @property
    def committed(self) -> bool:
        """Whether the holders can see it, or have seen it. All of it was put in one transaction."""
        return all(
            # The number of an item that was rolled back may be another's by now. It goes when the answer comes.
            self.store.asked(one.item) == one.payload or self.store.answer(one.id) is not None
            for one in self._commands[:1]
        )

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
            if self.turn is not None:
                self.turn()
            else:
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

    def _give_up(self, error: BaseException) -> None:
        try:
            for command in self._commands:
                self.store.take_back(command.item)
        except StoreError as failure:
            error.add_note(f"the request ({self.kind}) could not be taken back, and may be carried out: {failure}")

    def _unavailable(self, silent: list[_Command], timeout_s: float, certain: Mapping[str, Said]) -> WheelUnavailable:
        shards = ", ".join(map(str, sorted({command.shard for command in silent})))
        return WheelUnavailable(
            f"nobody answered for shard {shards} within {timeout_s:g} s: no scheduler runs, or it cannot reach the "
            f"broker; the request ({self.kind}) was taken back, and nothing will happen there; start a scheduler: "
            "celery beat -S wheel",
            certain,
        )


class ForVerdicts(Request[Verdict]):
    """Of what several shards know, the best verdict counts."""

    def _found(self, names: Sequence[str]) -> dict[str, Verdict]:
        found = dict.fromkeys(names, Verdict.UNKNOWN)
        for command in self._commands:
            for name, said in (command.verdicts or {}).items():
                found[name] = max(found[name], Verdict(said), key=_BETTER.__getitem__)
        return found

    def _in_doubt(self, found: Mapping[str, Verdict], unanswered: set[str]) -> set[str]:
        return {name for name in unanswered if found[name] is not Verdict.DONE}

    def _certain(self, found: Mapping[str, Verdict], in_doubt: set[str]) -> dict[str, Verdict]:
        return {name: said for name, said in found.items() if name not in in_doubt}


class ForGates(ForVerdicts):
    """A gate is one in every shard: it is closed, or open, once it is so in all of them."""

    def _in_doubt(self, found: Mapping[str, Verdict], unanswered: set[str]) -> set[str]:
        return unanswered


class ForCounts(Request[Completed]):
    """Tasks that watch a key may be in several shards: they are added up."""

    def _found(self, names: Sequence[str]) -> dict[str, Completed]:
        found = dict.fromkeys(names, Completed(0, 0))
        for command in self._commands:
            for name, said in (command.verdicts or {}).items():
                found[name] = Completed(found[name].done + said["done"], found[name].too_late + said["too_late"])
        return found

    def _in_doubt(self, found: Mapping[str, Completed], unanswered: set[str]) -> set[str]:
        return unanswered

    def _certain(self, found: Mapping[str, Completed], in_doubt: set[str]) -> dict[str, Completed]:
        """In a shard that did not answer nothing happens: what was counted is all that was done."""
        return {name: said for name, said in found.items() if name not in in_doubt or said != Completed(0, 0)}


@dataclass(frozen=True, slots=True)
class Pending:
    """A request that is part of a transaction of the caller's: it is carried out if and only if that commits."""

    request: ForVerdicts
    single: str | None  #: the one task, where a single one was given

    def result(self, timeout: float = TIMEOUT_S) -> Verdict | dict[str, Verdict]:
        """After the commit: the verdict, or those on each of several tasks, as ``app.wheel`` gives it otherwise.

        Raises NotCommitted while the transaction is open and after it was rolled back, and WheelUnavailable when no
        holder answers within ``timeout`` seconds; the request was taken back then.
        """
        if not self.request.committed:
            raise NotCommitted(
                f"the transaction of this request ({self.request.kind}) is still open, or was rolled back: nobody has "
                "heard of it, and there is no verdict; ask for the result behind the atomic block"
            )
        verdicts = self.request.result(timeout)
        return verdicts if self.single is None else verdicts[self.single]
