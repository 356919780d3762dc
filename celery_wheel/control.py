"""``app.wheel``: what waits in an app's wheel, and what is to become of it; for Python, the CLI and the admin.

::

    reading     pending, counts, get, find, history, outcomes, batches, status    from the store, whoever runs
    acting      cancel, reschedule, run_now, complete, requeue, replay            by the holder, with a verdict
                pause, resume

Reading works in any process that reaches the store, also while no scheduler runs. What acts is a request to whoever
holds the shard (see ``celery_wheel.request``): it says for certain what became of it; or it is put into a
transaction of the caller's, for a ``Pending`` verdict (``celery_wheel.transaction``). The store is opened with the
first question, once a process, and anew after a fork, and when the one that was opened is there no more: its file was
deleted or replaced, its tables were emptied, it has other shards now.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from celery_wheel.conf import Conf
from celery_wheel.given import (
    How,
    TaskLike,
    Which,
    Who,
    check_at_once,
    gate_name,
    id_of,
    key_of,
    timeout,
    who,
)
from celery_wheel.request import Completed, ForCounts, ForGates, ForVerdicts, Pending, Verdict
from celery_wheel.status import ShardStatus, status_of
from celery_wheel.store import browse, open_store
from celery_wheel.store.browse import Criteria, Detail, Page, Settled, Stopped, Task
from celery_wheel.store.model import (
    CANCEL,
    COMPLETE,
    MOVE,
    ORIGIN,
    PAUSE,
    REPLAY,
    REQUEUE,
    RESUME,
    Gate,
    Position,
)
from celery_wheel.store.sql import SqlStore
from celery_wheel.transaction import Inbox, inbox_of, wanted

if TYPE_CHECKING:
    from celery_wheel.bulk import Scheduled

END = browse.END

#: Seconds between two looks whether the store is still the one that was opened.
LOOK_EVERY_S = 1.0


#: A longer time to resume over is a mistake in the unit.
MAX_OVER_S = 366 * 86_400


Completing = Literal["cancel", "run"]


Tasks = TaskLike | Iterable[TaskLike]
Answer = Verdict | dict[str, Verdict] | Pending


class Wheel:
    """Every method raises StoreError, with what to do, where the store cannot be read."""

    def __init__(self, app: Any) -> None:
        self.conf = Conf(app)
        self._opening = threading.Lock()
        self._opened: tuple[int, str, SqlStore] | None = None  #: process, URL, store
        self._of_parents: list[SqlStore] = []  #: kept, since closing their connections would disturb the parent's
        self._looked_s = 0.0
        self.turn: Callable[[], None] | None = None  #: see ``celery_wheel.request``; for tests in one thread

    @property
    def store(self) -> SqlStore:
        """The store, taken as it is; one that is not there is not made."""
        here = (os.getpid(), self.conf.store)
        with self._opening:
            if self._opened is not None and (self._opened[:2] != here or not self._is_there(self._opened[2])):
                self._give_up(*self._opened)
            if self._opened is None:
                store = open_store(here[1], durability=self.conf.durability, shards=None, create=False)
                self._opened = (*here, store)
                self._looked_s = time.monotonic()
            return self._opened[2]

    def _is_there(self, store: SqlStore) -> bool:
        if store.database.replaced():
            return False
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return True
        there = store.as_opened()
        self._looked_s = now_s
        return there

    def _give_up(self, process: int, url: str, store: SqlStore) -> None:
        self._opened = None
        if process == os.getpid():
            store.close()
        else:
            self._of_parents.append(store)

    def close(self) -> None:
        """Give the connections back; the next question opens the store again."""
        with self._opening:
            if self._opened is not None:
                self._give_up(*self._opened)

    # -- what is waiting ------------------------------------------------------------------------------

    def status(self) -> list[ShardStatus]:
        """Each shard's holder, offset, pending tasks and levels."""
        return status_of(self.store, now_ms())

    def counts(self) -> browse.Names:
        """How much is pending by queue and by task."""
        return browse.names(self.store)

    def pending(self, after: Position = ORIGIN, limit: int = 100, **criteria: Any) -> Page[Task]:
        """A page of what waits, the next due first; ``page.next`` is the ``after`` of the page behind it.

        Args:
            criteria: task, queue, key, shard, from_ms and to_ms (due from the one on, and before the other).
        """
        return browse.pending(self.store, Criteria(**criteria), after, limit)

    def history(self, before: Position = END, limit: int = 100, **criteria: Any) -> Page[Task]:
        """A page of what left, the last due first, with how late it was."""
        return browse.dispatched(self.store, Criteria(**criteria), before, limit)

    def outcomes(self, *kinds: str, before: Position = END, limit: int = 100, **criteria: Any) -> Page[Stopped]:
        """A page of what was set aside, the latest first. Kinds: rejected, cancelled, expired, parked, moved.

        Here from_ms and to_ms are of when that was.
        """
        return browse.outcomes(self.store, kinds or ("rejected",), Criteria(**criteria), before, limit)

    def batches(self, before: Position = END, limit: int = 100, **criteria: Any) -> Page[Settled]:
        """A page of the settlements, the latest first."""
        return browse.batches(self.store, Criteria(**criteria), before, limit)

    def forecast(self, by: str | None = None, **criteria: Any) -> list[browse.DueBy]:
        """How much is due in each hour, by ``"queue"`` or ``"task"`` too where that is asked; from the tally."""
        return browse.due_by_name(self.store, Criteria(**criteria), by)

    def find(self, task_id: str, *, with_bytes: bool = True) -> list[Detail]:
        """Every message of a task id that the store still knows: a retried task has one a try.

        Args:
            with_bytes: False leaves headers, properties and bodies empty, which may be large.
        """
        return browse.find(self.store, task_id, with_bytes=with_bytes)

    def get(self, task_id: str) -> Detail | None:
        """The message of a task id that is due last; None where the wheel does not know the id."""
        return max(self.find(task_id), key=lambda one: one.task.position, default=None)

    # -- acting ---------------------------------------------------------------------------------------

    @overload
    def cancel(self, tasks: Tasks, *, transactional: Literal[True], **how: Unpack[Who]) -> Pending: ...
    @overload
    def cancel(self, tasks: TaskLike, **how: Unpack[How]) -> Verdict: ...  # type: ignore[overload-overlap]  # a text is one id
    @overload
    def cancel(self, tasks: Iterable[TaskLike], **how: Unpack[How]) -> dict[str, Verdict]: ...
    def cancel(self, tasks: Tasks, **how: Any) -> Answer:
        """Let a task, or each of several, not leave any more.

        Args:
            tasks: a task id or an AsyncResult; or several, for a verdict on each by its id.
            how: ``reason`` and ``actor`` for those who look at it later; ``timeout`` in seconds, 10 if none is given.
                With ``transactional=True`` it is part of the caller's transaction, and so it is inside an atomic block
                where ``wheel_transactional`` is set: then a ``Pending`` is returned, whose ``result`` is the verdict.

        Raises WheelUnavailable when no holder answers in time; the request was taken back then.
        """
        return self._ask(CANCEL, {}, tasks, how)

    @overload
    def reschedule(
        self, tasks: Tasks, *, eta: Any = None, countdown: Any = None, transactional: Literal[True], **how: Unpack[Who]
    ) -> Pending: ...
    @overload
    def reschedule(self, tasks: TaskLike, *, eta: Any = None, countdown: Any = None, **how: Unpack[How]) -> Verdict: ...  # type: ignore[overload-overlap]  # a text is one id
    @overload
    def reschedule(
        self, tasks: Iterable[TaskLike], *, eta: Any = None, countdown: Any = None, **how: Unpack[How]
    ) -> dict[str, Verdict]: ...
    def reschedule(self, tasks: Tasks, *, eta: Any = None, countdown: Any = None, **how: Any) -> Answer:
        """Let a task, or each of several, leave at another time, given as for ``apply_async``; else as ``cancel``."""
        from celery_wheel.eta import due  # with Celery, which reading does not need

        if (eta is None) == (countdown is None):
            raise TypeError("reschedule must have an eta or a countdown, and not both; run_now() is for now")
        at = due(self.conf.app, self.conf.app.now(), countdown, eta) if countdown or eta else None
        return self._ask(MOVE, {"eta_ms": None if at is None else at.eta_ms}, tasks, how)

    @overload
    def run_now(self, tasks: Tasks, *, transactional: Literal[True], **how: Unpack[Who]) -> Pending: ...
    @overload
    def run_now(self, tasks: TaskLike, **how: Unpack[How]) -> Verdict: ...  # type: ignore[overload-overlap]  # a text is one id
    @overload
    def run_now(self, tasks: Iterable[TaskLike], **how: Unpack[How]) -> dict[str, Verdict]: ...
    def run_now(self, tasks: Tasks, **how: Any) -> Answer:
        """Let a task, or each of several, leave at once; else as ``cancel``."""
        return self._ask(MOVE, {"eta_ms": None}, tasks, how)

    @overload
    def requeue(self, tasks: TaskLike, **how: Unpack[How]) -> Verdict: ...  # type: ignore[overload-overlap]  # a text is one id
    @overload
    def requeue(self, tasks: Iterable[TaskLike], **how: Unpack[How]) -> dict[str, Verdict]: ...
    def requeue(self, tasks: Tasks, **how: Any) -> Answer:
        """Let a task that was set aside (rejected, expired, parked) leave now, or each of several; else as ``cancel``.

        ``done``: it leaves now. ``too_late``: it was not set aside, or is no more. ``unknown``: the store has none.
        It completes with no key any more, and is unique no more.
        """
        return self._ask(REQUEUE, {}, tasks, how)

    def replay(self, rows: Iterable[int], **how: Unpack[How]) -> dict[int, Verdict]:
        """Let rows of the history (``Task.id``) leave once more, now, in this order: after a broker lost them.

        Those that it has not lost run twice. ``done``: it leaves once more. ``too_late``: it is no history: it waits,
        rests, or left just now. ``unknown``: the store has none. Else as ``cancel``.
        """
        names = [str(row) for row in rows]
        verdicts = self._request(REPLAY, {}, how, "rows").ask(names, timeout(how))
        return {int(row): verdict for row, verdict in verdicts.items()}

    @overload
    def complete(self, keys: str, how: Completing = "cancel", **said: Unpack[How]) -> Completed: ...  # type: ignore[overload-overlap]  # a text is one key
    @overload
    def complete(
        self, keys: Iterable[str], how: Completing = "cancel", **said: Unpack[How]
    ) -> dict[str, Completed]: ...
    def complete(
        self, keys: str | Iterable[str], how: Completing = "cancel", **said: Unpack[How]
    ) -> Completed | dict[str, Completed]:
        """Complete every task that watches a key, or one of several; of each, either this or its time comes first.

        It reaches every task that had been sent when it was called. A key that nobody watches has no ``done`` and no
        ``too_late``. A task that left by its time is told of once, and watches nothing then. Else as ``cancel``.

        Args:
            keys: as in ``wheel={"watch": [...]}``; several, for what became of each. A task that watches two of them
                counts for both.
            how: "cancel": they do not leave any more; "run": they leave at once.
        """
        if how not in ("cancel", "run"):
            raise ValueError(f'complete() must be told to "cancel" or to "run", got {how!r:.60}')
        check_at_once("complete", said)
        one = isinstance(keys, str)
        wanted = [key_of(key) for key in ([keys] if one else keys)]
        options = {"how": how, **who(said)}
        found = ForCounts(lambda: self.store, COMPLETE, options, "keys", self.turn).ask(wanted, timeout(said))
        return found[wanted[0]] if one else found

    # -- gates ----------------------------------------------------------------------------------------

    def pause(self, **which: Unpack[Which]) -> None:
        """Let nothing leave for a queue, or of a task; or nothing at all. It is cancelled and moved as ever.

        It holds until ``resume``, also after a restart. What is due meanwhile waits in order, and holds up no other.

        Raises WheelUnavailable when no holder answers in time.
        """
        self._gate(PAUSE, {}, which)

    def resume(self, *, over: float | None = None, **which: Unpack[Which]) -> bool:
        """Undo ``pause``; returns whether it was paused.

        Args:
            over: seconds in which what had gathered leaves evenly; at once if there are none.
        """
        if over is not None and (isinstance(over, bool) or not isinstance(over, (int, float))):
            raise TypeError(f"resume must be over a number of seconds, got {over!r:.60}")
        if over is not None and not 0 <= over < MAX_OVER_S:
            raise ValueError(f"resume must be over a time of 0 s to a year, got {over!r}")
        verdict = self._gate(RESUME, {"per_ms": round(over * 1_000) if over else None}, which)
        return verdict is Verdict.DONE

    def gates(self) -> list[Gate]:
        """What is paused, or was resumed over a time that is not over."""
        found = {(one.scope, one.name): one for shard in range(self.store.shards) for one in self.store.gates(shard)}
        return [one for one in found.values() if one.in_force(now_ms())]

    def _gate(self, kind: str, options: dict[str, Any], which: Which) -> Verdict:
        check_at_once(kind, which)
        name = gate_name(kind, which)
        request = ForGates(lambda: self.store, kind, {**options, **who(which)}, "gates", self.turn)
        return request.ask([name], timeout(which))[name]

    def _request(self, kind: str, options: dict[str, Any], how: How, list_name: str = "task_ids") -> ForVerdicts:
        return ForVerdicts(lambda: self.store, kind, {**options, **who(how)}, list_name, self.turn)

    def _ask(self, kind: str, options: dict[str, Any], tasks: Tasks, how: Any) -> Answer:
        one = isinstance(tasks, str) or hasattr(tasks, "id")
        if not one and not isinstance(tasks, Iterable):
            raise TypeError(f"a task must be given by its id or its AsyncResult, got {tasks!r:.60}")
        wanted: Any = [tasks] if one else tasks
        task_ids = [id_of(task) for task in wanted]
        request = self._request(kind, options, how)
        inbox = self._inbox(how)
        if inbox is not None:
            request.put(task_ids, self.conf.shards, inbox.ask)
            return Pending(request, task_ids[0] if one else None)
        verdicts = request.ask(task_ids, timeout(how))
        return verdicts[task_ids[0]] if one else verdicts

    def _inbox(self, how: How) -> Inbox | None:
        """Of the transaction that a request is to be part of, if it is."""
        asked = how.get("transactional")
        if not wanted(self.conf.app, asked):
            return None
        inbox = inbox_of(self.conf.app)
        return inbox if asked or inbox.in_transaction else None

    # -- scheduling -----------------------------------------------------------------------------------

    def schedule_many(self, rows: Iterable[Any], **options: Any) -> Scheduled:
        """Schedule very many tasks, past the broker; see ``celery_wheel.bulk.schedule_many``."""
        from celery_wheel.bulk import schedule_many

        return schedule_many(self.conf.app, self.store, rows, **options)


def wheel_of(app: Any) -> Wheel:
    """The app's ``Wheel``, one an app."""
    real: Any = getattr(app, "_get_current_object", lambda: app)()  # behind current_app's proxy
    wheel: Wheel | None = vars(real).get("_wheel")
    return wheel or vars(real).setdefault("_wheel", Wheel(real))


def now_ms() -> int:
    return int(time.time() * 1000)
