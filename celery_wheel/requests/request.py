"""A request to the holders: put into the store's inbox, answered in the store, withdrawn when no answer comes in time.

A withdrawal undoes nothing in a shard that has answered: a tombstone of a task that it did not know, or a gate, stays.

The result is definite also where the store is away meanwhile. A commit without an answer may have put the request in:
it is withdrawn and put in again, unless a holder has carried it out. A withdrawal that fails is tried again, for as
long as the time-out. Only where the store is away all the time, RequestInDoubt says which shards are uncertain.

Every shard gets a request for tasks, since a task's shard depends on the key with which it was sent, and a retry may
have another key. A request for schedules goes to the shards of their names, which pass it on to those of their groups.
One for limits goes to the shard of its group.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol

from celery_wheel import errors
from celery_wheel.conf import Conf
from celery_wheel.requests import results as merging
from celery_wheel.requests.answers import OpenStore
from celery_wheel.requests.arguments import TIMEOUT_S, seconds_of
from celery_wheel.requests.asynchronous import check_interruption, twin
from celery_wheel.requests.results import Merge, Result
from celery_wheel.store import model
from celery_wheel.store.audit_model import PROGRAM
from celery_wheel.store.ports import FullStore
from celery_wheel.store.schedule_model import SCHEDULE
from celery_wheel.timing import Backoff
from celery_wheel.values.ids import uuid7
from celery_wheel.values.instants import now_ms

#: Tasks in one command; a holder takes up to a thousand.
TASKS_AT_ONCE = 500

#: Seconds between two tries while the store does not answer.
RETRY_FIRST_S, RETRY_MOST_S = 0.05, 1.0

#: Names, or with each name its part of the command.
Names = Sequence[str] | Mapping[str, Any]

#: Kind of a request → the list of its names in a command, as ``celery_wheel.engine.intake.inbox`` reads it, and the
#: merge of the shards' answers.
_KINDS: dict[str, tuple[str, Merge[Any]]] = {
    **dict.fromkeys((model.CANCEL, model.MOVE, model.REQUEUE), ("task_ids", merging.BestResult())),
    model.REPLAY: ("rows", merging.BestResult()),
    model.COMPLETE: ("keys", merging.SummedCounts()),
    **dict.fromkeys((model.PAUSE, model.RESUME), ("gates", merging.EveryShard())),
    model.LIMIT: ("groups", merging.EveryShard()),
    model.ACCEPT_CLOCK: ("clocks", merging.MostUrgentAnswer()),
    SCHEDULE: ("names", merging.OnlyAnswer()),
    model.ERASE: ("digests", merging.SummedTotals()),
    model.BULK: ("bulks", merging.EveryShard()),
}


@dataclass(slots=True, eq=False)
class _InboxCommand:
    shard: int
    id: str
    names: list[str]
    payload: bytes = field(repr=False)
    item: int = 0
    is_put: bool = False  #: its commit was answered
    may_be_withdrawn: bool = False  #: a withdrawal has begun
    seen: bytes | None = field(default=None, repr=False)  #: the payload at the last look for progress
    answer: Mapping[str, Any] | None = None


#: Commands that may be carried out although they were withdrawn, and why.
Doubtful = dict[_InboxCommand, errors.StoreError]


class _Unanswered(errors.StoreError):
    """The holder has deleted a command without an answer."""


@dataclass(slots=True)
class Request:
    """A request for names: ``send`` and ``receive`` once each, or ``send_within`` a transaction of the caller.

    ``open_store`` is called when the store is needed: within a transaction nothing need be read.
    """

    open_store: Callable[[], OpenStore]
    kind: str
    names: Names
    options: dict[str, Any]  #: fields of each command
    timeout_s: float = TIMEOUT_S
    single: str | None = None  #: the only name, where its result alone is wanted
    merge: Merge[Any] | None = None  #: None: that of the kind
    #: the one shard of a name; None: every shard gets every name
    shard_of: Callable[[None, str, int], int] | None = None
    audit: Mapping[str, str] = field(default_factory=dict)  #: for the audit log: origin and bulk
    transactional: bool | None = None  #: the option of the call
    turn: Callable[[], None] | None = None  #: called instead of waiting, where the asker's own thread is the holder's
    patient: bool = False  #: the time-out begins anew while a holder goes on with a command of several parts
    number: str = ""  #: of the request, in the audit log; a UUIDv7
    at_ms: int = 0  #: time of asking
    _commands: list[_InboxCommand] = field(default_factory=list)
    _until_s: float = 0.0  #: the end of the time-out by the monotonic clock

    def send(self) -> None:
        """Put the commands into the shards' inboxes. The time-out begins."""
        check_interruption()
        self._until_s = time.monotonic() + self.timeout_s
        with self._withdrawn_on_error():
            store = self.open_store().store
            for commands in self._made(store.shards):
                left = commands
                while left:
                    left = self._put(left, store)

    def send_within(self, put_command: Callable[[int, str, bytes], int], shards: int) -> None:
        """Put the commands into the inboxes as a part of the caller's transaction, which withdraws them by its end."""
        for commands in self._made(shards):
            for command in commands:
                command.item, command.is_put = put_command(command.shard, self.kind, command.payload), True
            self._commands += commands

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Return the result of each name.

        Raises WheelUnavailable, with the certain results, where a holder did not answer, and RequestInDoubt where the
        store was away as well. Where the asker is interrupted (Ctrl-C, a worker's soft time limit, a cancelled
        awaiter), commands not carried out yet are withdrawn.

        Args:
            timeout_s: a time-out that begins now; None: the rest of the one that began with ``send``.
        """
        with self._withdrawn_on_error():
            return self.results(timeout_s)

    def results(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Return what ``receive`` does; an interrupted asker leaves the request as it is."""
        if timeout_s is not None:
            self.timeout_s, self._until_s = timeout_s, time.monotonic() + timeout_s
        self._wait()
        doubtful = self._withdraw_all(self._unanswered(), self._until_s + self.timeout_s)
        found, in_doubt = self._merged()
        if in_doubt:
            raise self._in_doubt(doubtful) if doubtful else self._unavailable(self._merge.certain(found, in_doubt))
        return {name: found[name] for name in self.names}

    def _unavailable(self, certain: dict[str, Any]) -> errors.WheelUnavailable:
        shards = sorted({command.shard for command in self._unanswered()})
        others = ", ".join(map(str, sorted({one.shard for one in self._commands if one.answer is not None})))
        stays = f"; shard {others} has answered, and what it did stays: send the request again" if others else ""
        return errors.WheelUnavailable(
            f"no scheduler answered for shard {', '.join(map(str, shards))} within {self.timeout_s:g} s: none runs, or "
            f"none can reach the broker; the request ({self.kind}) was withdrawn, and nothing will happen there{stays}"
            "; start a scheduler: celery -A proj beat -S wheel",
            certain,
            shards,
        )

    def chosen(self, results: dict[str, Any]) -> Any:
        """Return the results, or that of the only name."""
        return results if self.single is None else results[self.single]

    def withdraw(self, error: BaseException) -> None:
        """Withdraw the commands that are not carried out yet, without patience; the error notes what is not so."""
        if doubtful := self._withdraw_all(self._unanswered(), 0.0):
            error.add_note(str(self._in_doubt(doubtful)))
        elif any(command.answer is not None for command in self._commands):
            error.add_note(f"the request ({self.kind}) was carried out before it could be withdrawn")

    @property
    def committed(self) -> bool:
        """Whether the request is committed; all its commands were put in one transaction."""
        store = self.open_store().store
        return all(
            # The number of an item that was rolled back may be another item's by now. An answered item is deleted.
            one.id.encode() in (store.command_payload(one.item) or b"") or store.answer(one.id) is not None
            for one in self._commands[:1]
        )

    # -- sending ---------------------------------------------------------------------------------------

    def _made(self, shards: int) -> Iterator[list[_InboxCommand]]:
        """Yield the commands that are put together: one for each shard that has names, TASKS_AT_ONCE in each."""
        names = list(dict.fromkeys(self.names))
        of_shard: list[list[str]] = [names] * shards
        if self.shard_of is not None:
            of_shard = [[] for _ in range(shards)]
            for name in names:
                of_shard[self.shard_of(None, name, shards)].append(name)
        for start in range(0, max(map(len, of_shard), default=0), TASKS_AT_ONCE):
            commands: list[_InboxCommand] = []
            self.number, self.at_ms = uuid7(), now_ms()
            sent = {"request": self.number, "at_ms": self.at_ms}
            for shard, own in enumerate(of_shard):
                if part := own[start : start + TASKS_AT_ONCE]:
                    # A name that no shard knows has an entry of one shard, where each shard gets all names.
                    whole = self.shard_of is not None or not commands
                    commands.append(self._command(shard, part, {**sent, "whole": whole}))
            yield commands

    def _command(self, shard: int, names: list[str], sent: dict[str, Any]) -> _InboxCommand:
        number, (list_name, _) = str(uuid.uuid4()), _KINDS[self.kind]
        content: dict[str, Any] = {list_name: names}
        if isinstance(self.names, Mapping):
            content = {"definitions": {name: self.names[name] for name in names}}
        audit = {"origin": PROGRAM, **self.audit, **sent}
        payload = json.dumps({**content, "id": number, **self.options, "audit": audit}).encode()
        return _InboxCommand(shard, number, names, payload)

    def _put(self, commands: list[_InboxCommand], store: FullStore) -> list[_InboxCommand]:
        """Put commands; returns those to put again, because their commit had no answer and they are not there."""
        items: list[int] = []
        lost, is_put = None, False
        try:
            store.put_commands([(command.shard, self.kind, command.payload) for command in commands], items)
            is_put = True
        except errors.StoreError as error:
            if len(items) < len(commands):  # nothing was committed
                raise
            lost = error
        finally:  # also where a signal interrupts the commit
            if len(items) == len(commands):
                for command, item in zip(commands, items, strict=True):
                    command.item, command.is_put = item, is_put
                self._commands += commands
        return [] if lost is None else self._look_after(lost, commands)

    def _look_after(self, lost: errors.StoreError, commands: list[_InboxCommand]) -> list[_InboxCommand]:
        """Withdraw commands whose commit had no answer; returns those that were not carried out."""
        doubtful = self._withdraw_all(commands, self._until_s)
        again = [command for command in commands if command.answer is None]
        if doubtful or (again and time.monotonic() >= self._until_s):
            raise lost
        self._commands = [command for command in self._commands if command not in again]
        for command in again:
            command.may_be_withdrawn = False
        return again

    # -- answers ---------------------------------------------------------------------------------------

    def _unanswered(self) -> list[_InboxCommand]:
        return [command for command in self._commands if command.answer is None]

    def _wait(self) -> None:
        """Wait until every command is answered or the time is over, also where the store is away or opened anew."""
        backoff, left_s = Backoff(RETRY_FIRST_S, RETRY_MOST_S), max(0.0, self._until_s - time.monotonic())
        while left_s >= 0 and (waiting := self._unanswered()):
            try:
                opened = self.open_store()
                answers = opened.answers.wait([command.id for command in waiting], left_s, self.turn)
            except errors.StoreError as error:
                if _is_final(error):
                    raise
                time.sleep(min(backoff.failed(), left_s))
            else:
                for command in waiting:
                    command.answer = answers.get(command.id)
                opened.overview.expire()
            if self._unanswered():
                check_interruption()
            if self.patient and time.monotonic() > self._until_s and self._goes_on():
                self._until_s = time.monotonic() + self.timeout_s
            left_s = self._until_s - time.monotonic()

    def _goes_on(self) -> bool:
        """Whether a holder has carried out a part of a command since the last look."""
        store, goes_on = self.open_store().store, False
        for command in self._unanswered():
            payload = store.command_payload(command.item)
            goes_on |= payload is not None and payload not in (command.payload, command.seen)
            command.seen = payload
        return goes_on

    def by_shard(self, name: str) -> dict[int, Any]:
        """Return the result of a name in each shard that has answered."""
        return {one.shard: one.answer[name] for one in self._commands if one.answer is not None}

    @property
    def _merge(self) -> Merge[Any]:
        return self.merge or _KINDS[self.kind][1]

    def _merged(self) -> tuple[dict[str, Any], set[str]]:
        """Return the result of each name as far as the answers go, and the names that could get another result."""
        answers = [one.answer for one in self._commands if one.answer is not None]
        found = self._merge.merged(list(self.names), answers)
        in_doubt = self._merge.in_doubt(found, {name for one in self._unanswered() for name in one.names})
        return found, in_doubt | (found.keys() - {name for one in self._commands for name in one.names})

    # -- withdrawing -----------------------------------------------------------------------------------

    @contextmanager
    def _withdrawn_on_error(self) -> Iterator[None]:
        """Withdraw the request where the asker is interrupted, or where the store fails for good."""
        try:
            yield
        except (errors.WheelUnavailable, errors.RequestInDoubt):
            raise
        except errors.StoreError as error:
            if doubtful := self._withdraw_all(self._unanswered(), self._until_s):
                raise self._in_doubt(doubtful) from error
            done = any(command.answer is not None for command in self._commands)
            error.add_note(
                f"the request ({self.kind}) was carried out in part, and nothing more of it will happen"
                if done
                else f"nothing of the request ({self.kind}) will happen"
            )
            raise
        except BaseException as error:
            self.withdraw(error)
            raise

    def _withdraw_all(self, commands: list[_InboxCommand], until_s: float) -> Doubtful:
        """Withdraw commands, or note their answers where the holders were faster; return those that may be carried out.

        Where the store fails it is tried again until ``until_s``; each has the error of its last try.
        """
        backoff, doubtful = Backoff(RETRY_FIRST_S, RETRY_MOST_S), Doubtful()
        while True:
            for command in commands:
                try:
                    self._withdraw(command)
                    doubtful.pop(command, None)
                except errors.StoreError as error:
                    doubtful[command] = error
            commands = [command for command, error in doubtful.items() if not _is_final(error)]
            left_s = until_s - time.monotonic()
            if not commands or left_s <= 0:
                return doubtful
            time.sleep(min(backoff.failed(), left_s))

    def _withdraw(self, command: _InboxCommand) -> None:
        store, is_first = self.open_store().store, not command.may_be_withdrawn
        command.may_be_withdrawn = True
        if store.withdraw(command.item, (command.shard, self.kind, command.payload)):
            return
        command.answer = store.answer(command.id)
        if command.answer is None and command.is_put and is_first:
            if store.command_payload(command.item) is not None:  # in several parts, or passed on to another shard
                raise _Unanswered(f"shard {command.shard} has begun with the command {self.kind}, and goes on with it")
            raise _Unanswered(
                f"shard {command.shard} has accepted the command {self.kind} and has not answered it; perhaps the "
                "command could not be read; look for it among the rejected messages, and run the same version of "
                "celery-wheel here and in the scheduler"
            )

    def _in_doubt(self, doubtful: Doubtful) -> errors.RequestInDoubt:
        shards = ", ".join(map(str, sorted({command.shard for command in doubtful})))
        reasons = "; ".join(dict.fromkeys(map(str, doubtful.values())))
        return errors.RequestInDoubt(
            f"the request ({self.kind}) may still be carried out in shard {shards}, where it could not be withdrawn: "
            f"{reasons}; check there before you send it again",
            self._merge.certain(*self._merged()),
        )


def _is_final(error: errors.StoreError) -> bool:
    """Whether another try would end alike."""
    return isinstance(error, _Unanswered | errors.StoreUnusable) and not isinstance(error, errors.StoreNotReady)


class Asker(Protocol):
    """``Wheel``, which sends the requests; its room stands above this one."""

    conf: Conf

    @property
    def store(self) -> FullStore: ...

    def request(self, *args: Any, **options: Any) -> Request: ...

    def ask(self, request: Request) -> Any: ...

    def joins_transaction(self, how: Any) -> bool: ...


@dataclass(frozen=True, slots=True)
class TransactionalRequest(Generic[Result]):
    """A request within a transaction of the caller: it is carried out if and only if the transaction commits."""

    request: Request

    def result(self, timeout: float = TIMEOUT_S) -> Result | dict[str, Result]:
        """Return the result after the commit, or name → result for several, as ``app.wheel`` does otherwise.

        Raises NotCommitted while the transaction is open and after it was rolled back, and WheelUnavailable when no
        holder answers within ``timeout`` seconds and the request was withdrawn.
        """
        timeout_s = seconds_of("timeout", timeout)
        if not self.request.committed:
            raise errors.NotCommitted(
                f"the transaction of this request ({self.request.kind}) is still open, or was rolled back; no "
                "scheduler has received the request, and it has no result; call result() after the atomic block"
            )
        found: Result | dict[str, Result] = self.request.chosen(self.request.results(timeout_s))
        return found

    aresult = twin(result)
