"""A request to the holders: put into the store's inbox, answered in the store, withdrawn when no answer comes in time.

::

    request ─► every shard's inbox ─► each holder: done, already, too_late or unknown ─► one result a name
                    └ no answer within ``timeout_s``: withdrawn. In time: WheelUnavailable, nothing will happen there
                                                               Too late: the holder has just answered, and that counts

A request within a transaction of the caller reaches the inboxes with its commit; ``TransactionalRequest`` then waits
for the answer.

Every shard gets a request for tasks, since a task's shard depends on the key with which it was sent, and a retry may
have another key. A request for schedules goes to the shards of their names. One command has several hundred names, so a
thousand results take hardly longer than one.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic

from celery_wheel.errors import NotCommitted, StoreError, WheelUnavailable
from celery_wheel.requests.arguments import TIMEOUT_S, seconds_of
from celery_wheel.requests.asynchronous import twin
from celery_wheel.requests.interruption import check_interruption
from celery_wheel.requests.process_store import OpenStore
from celery_wheel.requests.results import Merge, Result
from celery_wheel.values.ids import uuid7

#: Tasks in one command; a holder takes up to a thousand.
TASKS_AT_ONCE = 500

#: Returns the shard of a key, or else of a name, given the number of shards; see ``celery_wheel.broker.names``.
ShardOf = Callable[[str | None, str, int], int]


#: Names, or with each name its part of the command.
Names = Sequence[str] | Mapping[str, Any]


@dataclass(slots=True)
class _InboxCommand:
    shard: int
    id: str
    names: list[str]
    item: int
    payload: bytes = field(repr=False)
    answer: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Request(Generic[Result]):
    """``kind``, ``options`` and ``list_name`` are as ``celery_wheel.engine.intake.inbox`` describes them.

    ``open_store`` is called when the store is needed: within a transaction nothing need be read.
    """

    open_store: Callable[[], OpenStore]
    merge: Merge[Result]
    kind: str
    options: dict[str, Any]
    list_name: str = "task_ids"
    turn: Callable[[], None] | None = None  #: called instead of waiting, where the asker's own thread is the holder's
    shard_of: ShardOf | None = None  #: the one shard of a name; None: every shard gets every name
    audit: Mapping[str, Any] | None = None  #: for the audit log: origin, action and details; None: not in the log
    _commands: list[_InboxCommand] = field(default_factory=list)
    _names: list[str] = field(default_factory=list)

    def ask(self, names: Names, timeout_s: float) -> dict[str, Result]:
        """Return the result of each name. Raises WheelUnavailable, with the certain results, where a holder did not
        answer.

        Where the asker is interrupted (Ctrl-C, a worker's soft time limit, a cancelled awaiter), commands not carried
        out yet are withdrawn.
        """
        until_s = time.monotonic() + timeout_s
        self.send(names)
        return self.receive(timeout_s, until_s)

    def send(self, names: Names) -> None:
        """Put the commands into the inboxes; ``receive`` follows."""
        check_interruption()
        with self._withdrawn_on_error():
            store = self.open_store().store
            self.put(names, store.shards, store.put_commands)

    def receive(self, timeout_s: float, until_s: float | None = None) -> dict[str, Result]:
        """Return the results of ``send``, as ``ask`` does.

        Args:
            until_s: the end of the time-out by the monotonic clock, where it began before this call.
        """
        with self._withdrawn_on_error():
            return self.result(timeout_s, until_s)

    def withdraw(self, error: BaseException) -> None:
        """Withdraw the commands that are not carried out yet; a failure is noted in the error."""
        try:
            for command in self._commands:
                self.open_store().store.withdraw(command.item)
        except StoreError as failure:
            error.add_note(f"the request ({self.kind}) could not be withdrawn, and may be carried out: {failure}")

    @contextmanager
    def _withdrawn_on_error(self) -> Iterator[None]:
        try:
            yield
        except WheelUnavailable:
            raise
        except BaseException as error:
            self.withdraw(error)
            raise

    def put(self, names: Names, shards: int, ask: Callable[[list[tuple[int, str, bytes]]], list[int]]) -> None:
        """Put the commands into the shards' inboxes; ``ask`` is as ``store.put_commands``."""
        self._names = list(dict.fromkeys(names))
        of_shard = self._by_shard(shards)
        for start in range(0, max(map(len, of_shard), default=0), TASKS_AT_ONCE):
            commands: list[_InboxCommand] = []
            asked = {"request": uuid7(), "at_ms": time.time_ns() // 1_000_000}
            for shard, own in enumerate(of_shard):
                if part := own[start : start + TASKS_AT_ONCE]:
                    number = str(uuid.uuid4())
                    content = {name: names[name] for name in part} if isinstance(names, Mapping) else part
                    # A name that no shard knows has an entry of one shard, where each shard gets all names.
                    whole = self.shard_of is not None or not commands
                    audit = {"audit": {**self.audit, **asked, "whole": whole}} if self.audit else {}
                    payload = json.dumps({self.list_name: content, "id": number, **self.options, **audit}).encode()
                    commands.append(_InboxCommand(shard, number, part, 0, payload))
            items = ask([(command.shard, self.kind, command.payload) for command in commands])
            for command, item in zip(commands, items, strict=True):
                command.item = item
            self._commands += commands

    def _by_shard(self, shards: int) -> list[list[str]]:
        if self.shard_of is None:
            return [self._names] * shards
        found: list[list[str]] = [[] for _ in range(shards)]
        for name in self._names:
            found[self.shard_of(None, name, shards)].append(name)
        return found

    def result(self, timeout_s: float, until_s: float | None = None) -> dict[str, Result]:
        """Wait for the answers, and return the result of each name that was put."""
        self._wait(time.monotonic() + timeout_s if until_s is None else until_s)
        silent = [command for command in self._unanswered() if not self._withdraw(command)]
        found = self.merge.merged(self._names, [one.answer for one in self._commands if one.answer is not None])
        in_doubt = self.merge.in_doubt(found, {name for command in silent for name in command.names})
        if in_doubt:
            shards = ", ".join(map(str, sorted({command.shard for command in silent})))
            raise WheelUnavailable(
                f"no scheduler answered for shard {shards} within {timeout_s:g} s: none runs, or none can reach the "
                f"broker; the request ({self.kind}) was withdrawn, and nothing will happen there; start a scheduler: "
                "celery -A proj beat -S wheel",
                self.merge.certain(found, in_doubt),
            )
        return {name: found[name] for name in self._names}

    @property
    def committed(self) -> bool:
        """Whether the request is committed; all its commands were put in one transaction."""
        store = self.open_store().store
        return all(
            # The number of an item that was rolled back may be another item's by now, so the payload is compared. An
            # answered item is deleted.
            store.command_payload(one.item) == one.payload or store.answer(one.id) is not None
            for one in self._commands[:1]
        )

    def _unanswered(self) -> list[_InboxCommand]:
        return [command for command in self._commands if command.answer is None]

    def _wait(self, until_s: float) -> None:
        """Wait until every command is answered or the time is over, also where the store is opened anew meanwhile."""
        left_s = max(0.0, until_s - time.monotonic())
        while left_s >= 0 and (waiting := self._unanswered()):
            answers = self.open_store().answers.wait([command.id for command in waiting], left_s, self.turn)
            for command in waiting:
                command.answer = answers.get(command.id)
            if self._unanswered():
                check_interruption()
            left_s = until_s - time.monotonic()
        self.open_store().overview.expire()

    def _withdraw(self, command: _InboxCommand) -> bool:
        """Return whether the holder has answered after all, so that nothing was withdrawn."""
        store = self.open_store().store
        if store.withdraw(command.item):
            return False
        command.answer = store.answer(command.id)
        if command.answer is None:
            raise StoreError(
                f"shard {command.shard} has accepted the command {self.kind} and has not answered it; perhaps the "
                "command could not be read; look for it among the rejected messages, and run the same version of "
                "celery-wheel here and in the scheduler"
            )
        return True


@dataclass(frozen=True, slots=True)
class TransactionalRequest(Generic[Result]):
    """A request within a transaction of the caller: it is carried out if and only if the transaction commits."""

    request: Request[Result]
    single: str | None  #: the task id or name, where the caller named a single one

    def result(self, timeout: float = TIMEOUT_S) -> Result | dict[str, Result]:
        """Return the result after the commit, or name → result for several, as ``app.wheel`` does otherwise.

        Raises NotCommitted while the transaction is open and after it was rolled back, and WheelUnavailable when no
        holder answers within ``timeout`` seconds and the request was withdrawn.
        """
        timeout_s = seconds_of("timeout", timeout)
        if not self.request.committed:
            raise NotCommitted(
                f"the transaction of this request ({self.request.kind}) is still open, or was rolled back; no "
                "scheduler has received the request, and it has no result; call result() after the atomic block"
            )
        results = self.request.result(timeout_s)
        return results if self.single is None else results[self.single]

    aresult = twin(result)
