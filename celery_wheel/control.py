"""``app.wheel``: what waits in an app's wheel, and what is to become of it; for Python, the CLI and the admin.

::

    Queries         pending, counts, get, find, history, outcomes, batches,      from the store, whoever runs
                    forecast, status, gates
    Wheel           cancel, reschedule, run_now, complete, requeue, replay       by the holder, with a verdict
                    pause, resume, accept_clock

Each action is a request to the holders of the shards (``celery_wheel.requests``): its result is certain;
or it is put into a transaction of the caller's, for a ``Pending`` verdict (``celery_wheel.transaction``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from celery_wheel.conf import Conf
from celery_wheel.queries import Queries, now_ms
from celery_wheel.requests.arguments import (
    MAX_OVER_S,
    How,
    TaskLike,
    Tasks,
    Which,
    Who,
    check_at_once,
    gate_name,
    ids_of,
    is_one,
    keys_of,
    per_ms,
    rows_of,
    timeout,
    who,
)
from celery_wheel.requests.process_store import ProcessStore
from celery_wheel.requests.request import Pending, Request
from celery_wheel.requests.verdicts import BestVerdict, Completed, EveryShard, Merge, Result, Sums, Verdict, WorstSaying
from celery_wheel.store.model import ACCEPT_CLOCK, CANCEL, COMPLETE, MOVE, PAUSE, REPLAY, REQUEUE, RESUME
from celery_wheel.store.ports import FullStore
from celery_wheel.transaction import Inbox, inbox_of, wanted

if TYPE_CHECKING:
    from celery_wheel.bulk import Scheduled

__all__ = ["MAX_OVER_S", "Wheel", "now_ms", "wheel_of"]

Completing = Literal["cancel", "run"]
Answer = Verdict | dict[str, Verdict] | Pending


class Wheel(Queries):
    """Every method raises StoreError, with what to do, where the store cannot be read.

    A task id, a key, a name, a reason or an actor that no store can hold is refused with an ArgumentError or a
    TypeError, before anything is sent: of several tasks all are checked first.
    """

    def __init__(self, app: Any) -> None:
        self.conf = Conf(app)
        self._process_store = ProcessStore(self.conf)
        self.turn: Callable[[], None] | None = None  #: see ``requests.request``; for tests in one thread

    @property
    def store(self) -> FullStore:
        """The store, taken as it is; one that is not there is not made."""
        return self._process_store.open().store

    def close(self) -> None:
        """Give the connections back; the next question opens the store again."""
        self._process_store.close()

    # -- acting ---------------------------------------------------------------------------------------

    @overload
    def cancel(self, tasks: Tasks, *, transactional: Literal[True], **how: Unpack[Who]) -> Pending: ...
    @overload
    def cancel(self, tasks: TaskLike, **how: Unpack[How]) -> Verdict: ...  # type: ignore[overload-overlap]  # a text is one id
    @overload
    def cancel(self, tasks: Iterable[TaskLike], **how: Unpack[How]) -> dict[str, Verdict]: ...
    def cancel(self, tasks: Tasks, **how: Any) -> Answer:
        """Cancel a task, or each of several: it is not dispatched.

        The verdict is ``done`` (this request cancelled it), ``already`` (an earlier one did), ``too_late`` (it was
        handed to the broker, or may have been) or ``unknown`` (it has not come to the wheel; if it comes within a day,
        it is not dispatched).

        Args:
            tasks: a task id or an AsyncResult; or several, for a verdict on each by its id.
            how: ``reason`` and ``actor`` for those who look at it later; ``timeout`` in seconds, 10 if none is given.
                With ``transactional=True`` it is part of the caller's transaction, and so it is inside an atomic block
                where ``wheel_transactional`` is set: then a ``Pending`` is returned, whose ``result`` is the verdict.

        Raises WheelUnavailable when no holder answers in time; the request was withdrawn then.
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
        verdicts = self._request(BestVerdict(), REPLAY, {}, how, "rows").ask(rows_of(rows), timeout(how))
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
        names = keys_of(keys)
        found = self._request(Sums(), COMPLETE, {"how": how}, said, "keys").ask(names, timeout(said))
        return found[names[0]] if isinstance(keys, str) else found

    # -- gates ----------------------------------------------------------------------------------------

    def pause(self, **which: Unpack[Which]) -> None:
        """Let nothing leave for a queue, or of a task; or nothing at all. It is cancelled and moved as ever.

        It holds until ``resume``, also after a restart. What is due meanwhile waits in order, and holds up no other.
        Pausing what is paused puts the new reason and actor in place of the former; one ``resume`` undoes both.

        Raises WheelUnavailable when no holder answers in time.
        """
        self._gate(PAUSE, {}, which)

    def resume(self, *, over: float | None = None, **which: Unpack[Which]) -> bool:
        """Undo ``pause``; returns whether it was paused.

        Args:
            over: seconds in which what had gathered leaves evenly; at once if there are none.
        """
        return self._gate(RESUME, {"per_ms": per_ms(over)}, which) is Verdict.DONE

    # -- clocks ---------------------------------------------------------------------------------------

    def accept_clock(self, **how: Unpack[How]) -> str:
        """Say that the wall clock of the schedulers' hosts is right: disputed due time follows it.

        Returns "accepted"; "agreed" where no shard disputed it; "refused" where the clock of the broker or the store
        contradicts by more than ``wheel_max_clock_skew`` in some shard. Raises WheelUnavailable as ``cancel`` does.
        """
        check_at_once("accept_clock", how)
        return self._request(WorstSaying(), ACCEPT_CLOCK, {}, how, "clocks").ask(["wall"], timeout(how))["wall"]

    def _gate(self, kind: str, options: dict[str, Any], which: Which) -> Verdict:
        check_at_once(kind, which)
        name = gate_name(kind, which)
        return self._request(EveryShard(), kind, options, which, "gates").ask([name], timeout(which))[name]

    def _request(
        self, merge: Merge[Result], kind: str, options: dict[str, Any], how: Who, list_name: str = "task_ids"
    ) -> Request[Result]:
        return Request(self._process_store.open, merge, kind, {**options, **who(how)}, list_name, self.turn)

    def _ask(self, kind: str, options: dict[str, Any], tasks: Tasks, how: Any) -> Answer:
        task_ids = ids_of(tasks)
        request = self._request(BestVerdict(), kind, options, how)
        inbox = self._inbox(how)
        if inbox is not None:
            request.put(task_ids, self.conf.shards, inbox.ask)
            return Pending(request, task_ids[0] if is_one(tasks) else None)
        verdicts = request.ask(task_ids, timeout(how))
        return verdicts[task_ids[0]] if is_one(tasks) else verdicts

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
