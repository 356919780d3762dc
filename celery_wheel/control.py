"""``app.wheel``: queries and commands for an app's pending tasks, for Python, the CLI and the admin.

A command is a request to the holders of the shards (``celery_wheel.requests``), with a definite result; or it is part
of the caller's transaction and returns a ``TransactionalRequest`` (``celery_wheel.producer.transaction``). Queries read
the store, also without a scheduler. Each method has an async twin: acancel, apending, ….
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from celery_wheel.broker import shard_of
from celery_wheel.conf import Conf
from celery_wheel.errors import ArgumentError
from celery_wheel.overview import FEW, Overview, ShardStatus, group_totals, read_overview
from celery_wheel.overview.ahead import Ahead
from celery_wheel.producer.transaction import TransactionalInbox, inbox_of, is_transactional
from celery_wheel.requests import arguments
from celery_wheel.requests.answers import ProcessStore
from celery_wheel.requests.arguments import MAX_OVER_S, CommandOptions, GateOptions, RequestOptions, TaskLike, Tasks
from celery_wheel.requests.asynchronous import twin
from celery_wheel.requests.audit import ChainReport, verify, with_reasons
from celery_wheel.requests.bulk import BulkActions
from celery_wheel.requests.erasure import ErasureReceipt, erase, erasure_of
from celery_wheel.requests.limits import OwnLimits
from celery_wheel.requests.request import Names, Request, TransactionalRequest
from celery_wheel.requests.results import CommandResult, CompletionResult, Merge
from celery_wheel.requests.schedules import Schedules
from celery_wheel.store import model
from celery_wheel.store.audit_model import AuditCriteria, AuditPage, links_in
from celery_wheel.store.ports import FullStore, pages
from celery_wheel.store.schedule_model import SCHEDULE, ScheduleCounts
from celery_wheel.values.instants import now_ms
from celery_wheel.values.log import get_logger
from celery_wheel.values.mask import Mask

if TYPE_CHECKING:
    from celery_wheel.bulk_load import ScheduleResult

logger = get_logger(__name__)

__all__ = ["MAX_OVER_S", "Wheel", "now_ms", "wheel_of"]

#: Kinds of requests that may be part of the caller's transaction; all others take effect at once.
JOINABLE = (model.CANCEL, model.MOVE, model.REQUEUE, SCHEDULE)

Completing = Literal["cancel", "run"]


class Wheel:
    """The queries and commands of one app.

    Every method raises StoreError, with a remedy, where the store cannot be read. A task id, key, name, reason or actor
    that no store can hold raises ArgumentError or TypeError before anything is sent: all tasks are checked first.
    """

    def __init__(self, app: Any) -> None:
        self.conf = Conf(app)
        self._process_store = ProcessStore(self.conf)
        self.schedules = Schedules(self)
        self.limits = OwnLimits(self)
        self.bulk = BulkActions(self)
        self.turn: Callable[[], None] | None = None  #: see ``requests.request``; for tests in one thread

    @property
    def store(self) -> FullStore:
        """The store, opened but never made."""
        return self._process_store.open().store

    @property
    def mask(self) -> Mask:
        """Hides the values that ``wheel_mask`` names from everything that is shown."""
        return Mask(self.conf.mask)

    def overview(self) -> Overview:
        """Return the state of the whole store, at most a second old: all callers of a process share one reading."""
        return self._process_store.open().overview.get()

    aoverview = twin(overview)

    def schedule_counts(self) -> ScheduleCounts:
        """Return the counts of schedules by state, which a process counts in a hundredth of its time."""
        return self._process_store.open().schedule_counts.get()

    aschedule_counts = twin(schedule_counts)

    def ahead(self, at_most_s: float | None = None) -> Ahead:
        """Return the pending tasks of each hour from now on, and the largest coming herds with their tasks.

        Args:
            at_most_s: the wait for a search of many rows, which goes on in a thread: the answer is then that of the
                search before, or, if there was none, has no herds yet, and ``searched`` is False.
        """
        opened = self._process_store.open()
        return opened.ahead.get() if at_most_s is None else opened.ahead_within(at_most_s)

    aahead = twin(ahead)

    def audit(self, /, before: str | None = None, limit: int = 100, **criteria: Any) -> AuditPage:
        """Return a page of the audit log, the latest request first; ``page.next`` is the ``before`` of the next page.

        Args:
            criteria: actor (a part of the name), action, origin, name (of a task, a schedule, a key, a gate or
                a group), bulk, from_ms and to_ms.
        """
        page = self.store.browse.audit(AuditCriteria(**criteria), before, limit)
        if not self.mask:
            return page
        items = [replace(one, results=with_reasons(one.results, self.mask.text)) for one in page.items]
        return replace(page, items=items)

    aaudit = twin(audit)

    def verify_audit(self, heads: str = "") -> list[ChainReport]:
        """Check the chains of the audit log (docs/permissions.md); a report has a problem, or an empty one.

        Args:
            heads: a text with heads that were noted earlier, as reports have them; a cut or remade chain differs.
        """
        return verify(self.store, links_in(heads) if heads else ())

    averify_audit = twin(verify_audit)

    def close(self) -> None:
        """Close the connections; the next call opens the store again."""
        self._process_store.close()

    # -- queries --------------------------------------------------------------------------------------

    def status(self) -> list[ShardStatus]:
        """Return each shard's holder, offset, pending tasks and levels."""
        return read_overview(self.store, now_ms(), with_levels=True).shards

    def counts(self) -> pages.Names:
        """Return the counts of pending tasks by queue and by task."""
        return self.store.browse.names()

    def pending(
        self, /, after: model.Position = model.ORIGIN, limit: int = 100, **criteria: Any
    ) -> pages.Page[pages.Task]:
        """Return a page of pending tasks, the next due first; ``page.next`` is the ``after`` of the next page.

        Args:
            criteria: task, queue, key, group, shard, from_ms and to_ms (due at or after the one, and before the other).
                A filter by key or group reads at most 10,000 tasks for a page, which may be short or empty; ``next``
                says whether there are more.
        """
        return self.store.browse.pending(pages.Criteria(**criteria), after, limit)

    def history(
        self, /, before: model.Position = pages.END, limit: int = 100, **criteria: Any
    ) -> pages.Page[pages.Task]:
        """Return a page of dispatched tasks, the last due first, with their lateness."""
        return self.store.browse.dispatched(pages.Criteria(**criteria), before, limit)

    def outcomes(
        self, /, *kinds: str, before: model.Position = pages.END, limit: int = 100, **criteria: Any
    ) -> pages.Page[pages.StoppedTask]:
        """Return a page of tasks with an outcome of these kinds, the latest outcome first.

        Kinds: rejected (the default), cancelled, expired, moved. Here from_ms and to_ms are of the outcome.
        """
        for kind in set(kinds) - set(model.OUTCOMES):
            raise ArgumentError(f"kind must be one of {', '.join(model.OUTCOMES)}, got {kind!r:.60}")
        return self.store.browse.outcomes(kinds or ("rejected",), pages.Criteria(**criteria), before, limit)

    def settlements(
        self, /, before: model.Position = pages.END, limit: int = 100, **criteria: Any
    ) -> pages.Page[pages.StoredSettlement]:
        """Return a page of the settlements, the latest first."""
        return self.store.browse.settlements(pages.Criteria(**criteria), before, limit)

    def forecast(self, /, by: str | None = None, **criteria: Any) -> list[pages.NamedHourCount]:
        """Return the count of tasks due in each hour; ``by``: for each ``"queue"``, ``"task"`` or ``"group"``.

        The counts come from the tally. A forecast by group reads every pending task of these hours: the twenty groups
        with the most tasks have a count each, and all other groups one, with the name ``_other``. The name of tasks
        without a group is empty.
        """
        if by not in (None, *pages.FORECASTS):
            raise ArgumentError(f"by must be one of {', '.join(pages.FORECASTS)}, got {by!r:.60}")
        found = pages.Criteria(**criteria)
        return self.store.browse.due_by_group(found) if by == "group" else self.store.browse.due_by_name(found, by)

    def find(self, task_id: str, *, with_bytes: bool = True) -> list[pages.Detail]:
        """Return every message of a task id that the store still knows: a retried task has one for each try.

        Args:
            with_bytes: False leaves headers, properties and bodies empty, which may be large.
        """
        return self.store.browse.find(task_id, with_bytes=with_bytes)

    def get(self, task_id: str) -> pages.Detail | None:
        """Return the message of a task id that is due last; None where the wheel does not know the id."""
        return max(self.find(task_id), key=lambda one: one.task.position, default=None)

    def gates(self) -> list[model.Gate]:
        """Return the gates in force: pauses, and resumptions whose time is not over."""
        found = {(one.scope, one.name): one for shard in range(self.store.shards) for one in self.store.gates(shard)}
        return [one for one in found.values() if one.in_force(now_ms())]

    def groups(
        self,
        search: str | None = None,
        limit: int = 100,
        *,
        sort: pages.GroupSort = "waiting",
        after: str | None = None,
    ) -> pages.GroupPage:
        """Return a page of the groups that have waiting tasks or tasks in flight; ``page.next`` is the next ``after``.

        With more than 2,000 groups, the first page by waiting has the largest ones, at most a hundred, as their holders
        counted them some seconds ago. Its ``next`` is None, and ``others`` is the number of all other groups: the order
        by name, a search or a limit above 100 reads them.

        Args:
            search: a part of the name; case is ignored.
            sort: "waiting": the group with the most waiting tasks first; "name": in the order of the names.
        """
        if sort not in pages.SORTS:
            raise ArgumentError(f"sort must be one of {', '.join(pages.SORTS)}, got {sort!r:.60}")
        if sort == "waiting" and search is None and after is None and limit <= pages.LARGEST:
            found = group_totals(self.overview().shards)
            if found.count > FEW:
                largest = found.largest[:limit]
                return self.store.browse.largest_groups(largest, found.count - len(largest))
        return self.store.browse.groups(now_ms(), search, sort, after, limit)

    astatus = twin(status)
    acounts = twin(counts)
    apending = twin(pending)
    ahistory = twin(history)
    aoutcomes = twin(outcomes)
    asettlements = twin(settlements)
    aforecast = twin(forecast)
    afind = twin(find)
    aget = twin(get)
    agates = twin(gates)
    agroups = twin(groups)

    # -- commands -------------------------------------------------------------------------------------

    @overload
    def cancel(
        self, tasks: Tasks, *, transactional: Literal[True], **how: Unpack[RequestOptions]
    ) -> TransactionalRequest[CommandResult]: ...
    @overload
    def cancel(self, tasks: TaskLike, **how: Unpack[CommandOptions]) -> CommandResult: ...  # type: ignore[overload-overlap]  # a text is one id
    @overload
    def cancel(self, tasks: Iterable[TaskLike], **how: Unpack[CommandOptions]) -> dict[str, CommandResult]: ...
    def cancel(self, tasks: Tasks, **how: Any) -> Any:
        """Cancel a pending task, or several.

        The result is ``done`` (this request cancelled the task), ``already`` (an earlier request did), ``too_late``
        (the task was dispatched, or may have been) or ``unknown`` (the wheel has not accepted such a task; if it
        arrives within a day, it is not dispatched).

        Args:
            tasks: a task id or an AsyncResult; or several, for a dict from each id to its result.
            how: ``reason`` and ``actor`` for people who read the history; ``timeout`` in seconds, 10 by default. A call
                that names no actor is of a program, for the audit log (docs/permissions.md).
                With ``transactional=True``, and inside an atomic block where ``wheel_transactional`` is set, the
                request is part of the caller's transaction, and the call returns a ``TransactionalRequest``.

        Raises WheelUnavailable when no holder answers in time; the request is withdrawn then. RequestInDoubt, a
        StoreError, says that the request may still be carried out: the store was away for the time-out and as long
        again.
        """
        return self.ask(self.request(model.CANCEL, *arguments.tasks_of(tasks), how))

    @overload
    def reschedule(
        self,
        tasks: Tasks,
        *,
        eta: Any = None,
        countdown: Any = None,
        transactional: Literal[True],
        **how: Unpack[RequestOptions],
    ) -> TransactionalRequest[CommandResult]: ...
    @overload
    def reschedule(  # type: ignore[overload-overlap]  # a text is one id
        self, tasks: TaskLike, *, eta: Any = None, countdown: Any = None, **how: Unpack[CommandOptions]
    ) -> CommandResult: ...
    @overload
    def reschedule(
        self, tasks: Iterable[TaskLike], *, eta: Any = None, countdown: Any = None, **how: Unpack[CommandOptions]
    ) -> dict[str, CommandResult]: ...
    def reschedule(self, tasks: Tasks, *, eta: Any = None, countdown: Any = None, **how: Any) -> Any:
        """Change the eta of a pending task, or of several; results and other arguments as for ``cancel``.

        Args:
            eta, countdown: as for ``apply_async``, exactly one of them.
        """
        from celery_wheel.producer.eta import due_time  # imports Celery, which queries do not need

        if (eta is None) == (countdown is None):
            raise TypeError("reschedule must have an eta or a countdown, and not both; run_now() is for now")
        due = due_time(self.conf.app, self.conf.app.now(), countdown, eta) if countdown or eta else None
        options = {"eta_ms": None if due is None else due.eta_ms}
        return self.ask(self.request(model.MOVE, *arguments.tasks_of(tasks), how, options))

    @overload
    def run_now(
        self, tasks: Tasks, *, transactional: Literal[True], **how: Unpack[RequestOptions]
    ) -> TransactionalRequest[CommandResult]: ...
    @overload
    def run_now(self, tasks: TaskLike, **how: Unpack[CommandOptions]) -> CommandResult: ...  # type: ignore[overload-overlap]  # a text is one id
    @overload
    def run_now(self, tasks: Iterable[TaskLike], **how: Unpack[CommandOptions]) -> dict[str, CommandResult]: ...
    def run_now(self, tasks: Tasks, **how: Any) -> Any:
        """Dispatch a pending task, or several, at once; results and arguments as for ``cancel``."""
        return self.ask(self.request(model.MOVE, *arguments.tasks_of(tasks), how, {"eta_ms": None}))

    @overload
    def requeue(self, tasks: TaskLike, **how: Unpack[CommandOptions]) -> CommandResult: ...  # type: ignore[overload-overlap]  # a text is one id
    @overload
    def requeue(self, tasks: Iterable[TaskLike], **how: Unpack[CommandOptions]) -> dict[str, CommandResult]: ...
    def requeue(self, tasks: Tasks, **how: Any) -> Any:
        """Dispatch a rejected or expired task now, or several; arguments as for ``cancel``.

        The result is ``done`` (the task is dispatched now), ``too_late`` (it is not rejected or expired, or not
        any more) or ``unknown`` (the store has no such task). A requeued task watches no keys and is not unique.
        """
        return self.ask(self.request(model.REQUEUE, *arguments.tasks_of(tasks), how))

    def replay(self, rows: Iterable[int], **how: Unpack[CommandOptions]) -> dict[int, CommandResult]:
        """Dispatch rows of the history (``Task.id``) again, now, in this order, after the broker has lost them.

        Tasks that the broker has not lost run twice. The result is ``done`` (the task is dispatched again),
        ``too_late`` (the row is pending, rejected or expired, or was dispatched just now) or ``unknown``
        (the store has no such row). Other arguments as for ``cancel``.
        """
        results = self.ask(self.request(model.REPLAY, arguments.rows_of(rows), None, how))
        return {int(row): result for row, result in results.items()}

    @overload
    def complete(  # type: ignore[overload-overlap]  # a text is one key
        self, keys: str, how: Completing = "cancel", **options: Unpack[CommandOptions]
    ) -> CompletionResult: ...
    @overload
    def complete(
        self, keys: Iterable[str], how: Completing = "cancel", **options: Unpack[CommandOptions]
    ) -> dict[str, CompletionResult]: ...
    def complete(self, keys: str | Iterable[str], how: Completing = "cancel", **options: Unpack[CommandOptions]) -> Any:
        """Complete every task that watches a key, or one of several: each task is either completed or dispatched.

        The call concerns every task that was sent before it. A key without watching tasks has no ``done`` and no
        ``too_late``. A task that was dispatched counts as ``too_late`` once, and watches no key afterwards. Other
        arguments as for ``cancel``.

        Args:
            keys: as in ``wheel={"watch": [...]}``; several, for a dict from each key to its result. A task that watches
                two of them counts for both.
            how: "cancel": the tasks are cancelled; "run": they are dispatched at once.
        """
        if how not in ("cancel", "run"):
            raise ValueError(f'complete() needs how="cancel" or how="run", got {how!r:.60}')
        names = arguments.texts_of("a key", keys)
        single = keys if isinstance(keys, str) else None
        return self.ask(self.request(model.COMPLETE, names, single, options, {"how": how}))

    def cancel_all(self, /, **which: Any) -> dict[CommandResult, int]:
        """Cancel all pending tasks that match, as a bulk action, and wait for it; returns result → number of tasks.

        Tasks that are sent after the holders have begun are left out.

        Args:
            which: criteria as for ``pending``, one at least; ``reason``, ``actor`` and ``timeout`` as for ``cancel``.
                The time-out begins anew with each step.

        Raises WheelUnavailable when no holder answers in time: tasks of earlier steps stay cancelled, and the action is
        stopped.
        """
        how = {name: which.pop(name) for name in CommandOptions.__annotations__ if name in which}
        criteria = pages.Criteria(**which)
        if criteria == pages.Criteria():
            raise TypeError('cancel_all must have a filter, like group="tenant:42", got none; nothing was cancelled')
        request = self.bulk.request_to_begin(model.CANCEL, criteria, "", None, how)
        self.ask(request)  # until each holder has begun
        done = self.bulk.result(str(request.single), request.timeout_s, self.turn)
        return {CommandResult(name): count for name, count in done.results.items()}

    # -- gates ----------------------------------------------------------------------------------------

    def pause(self, **which: Unpack[GateOptions]) -> None:
        """Pause dispatch with ``queue="…"``, ``task="…"``, ``group="…"`` or ``everything=True``.

        Paused tasks can be cancelled and rescheduled.

        A pause lasts until ``resume``, also after a restart. Tasks that fall due meanwhile wait in order, and delay no
        others. A second pause replaces reason and actor of the first; one ``resume`` ends both. The log has a warning
        where neither a pending task nor this app has the name.

        Raises WheelUnavailable when no holder answers in time.
        """
        name = arguments.gate_name(model.PAUSE, which)
        self.ask(self.request(model.PAUSE, [name], name, which))
        if which.get("origin", "api") == "api" and (warning := self.unknown_gate(**which)):
            logger.warning("%s", warning, extra={"action": "unknown_gate", "gate": name})

    def unknown_gate(self, **which: Unpack[GateOptions]) -> str:
        """Return a warning where neither a pending task nor this app has the name of a gate; empty otherwise."""
        scope, _, name = arguments.gate_name(model.PAUSE, which).partition(":")
        return "" if scope == "all" else arguments.unknown_gate(self.conf.app, self.store, scope, name)

    def resume(self, *, over: float | None = None, **which: Unpack[GateOptions]) -> bool:
        """End a pause; returns whether there was one.

        Args:
            over: seconds over which the backlog is dispatched evenly; None: at once.
        """
        options, name = {"per_ms": arguments.spread_ms(over)}, arguments.gate_name(model.RESUME, which)
        return self.ask(self.request(model.RESUME, [name], name, which, options)) is CommandResult.DONE

    # -- erasure --------------------------------------------------------------------------------------

    def erase(
        self,
        *,
        task_id: str | None = None,
        key: str | None = None,
        group: str | None = None,
        schedule: str | None = None,
        patient: bool = True,
        **how: Unpack[CommandOptions],
    ) -> ErasureReceipt:
        """Erase all that the store has of a task, of a key, of a group or of a schedule, and return the receipt.

        Erased are pending tasks, which will not be dispatched and are not announced as cancelled; the history with
        outcomes, reasons and runs; the names in the audit log, with the reasons and arguments of their requests. A
        group also loses its own limits and its pause, a schedule its revisions and skips. A schedule must be deleted
        before. The receipt says what is not covered. The reason of this request stays in the audit log: it should not
        name a person.

        The holders erase in small parts, beside their other work: 500 tasks in a commit. Tasks that are being
        dispatched are erased once they are settled. Tasks that are accepted after a holder has begun stay.

        Args:
            patient: the time-out begins anew with each part that a holder has erased; False: it is for the whole.
            how: as for ``cancel``; every erasure is in the audit log.

        Raises WheelUnavailable when no holder answers in time: the request is withdrawn where no holder has begun.
        RequestInDoubt says that a holder has begun, and goes on. ArgumentError for a schedule that exists.
        """
        by, value = erasure_of({"task_id": task_id, "key": key, "group": group, "schedule": schedule})
        return erase(self, by, value, how, patient=patient)

    # -- clocks ---------------------------------------------------------------------------------------

    def accept_clock(self, **how: Unpack[CommandOptions]) -> str:
        """Confirm that the wall clock of the schedulers' hosts is right: disputed due time follows it.

        Returns "accepted"; "agreed" where no shard disputed it; "refused" where in some shard the clock of the broker
        or the store differs by more than ``wheel_max_clock_skew``. Raises WheelUnavailable as ``cancel`` does.
        """
        answer: str = self.ask(self.request(model.ACCEPT_CLOCK, ["wall"], "wall", how))
        return answer

    # -- requests -------------------------------------------------------------------------------------

    def request(
        self,
        kind: str,
        names: Names,
        single: str | None,
        how: Any,
        options: Mapping[str, Any] | None = None,
        merge: Merge[Any] | None = None,
    ) -> Request:
        """Return a request that is not sent yet.

        ``single`` is the only name, whose result alone is returned; ``how`` has CommandOptions; ``options`` are fields
        of its commands; ``merge`` is of the shards' answers, None that of the kind.
        """
        if kind not in JOINABLE and "transactional" in how:
            raise TypeError(f"{kind} must be without the option transactional: it takes effect at once")
        return Request(
            self._process_store.open,
            kind,
            names,
            {**(options or {}), **arguments.attribution(how)},
            arguments.timeout_of(how),
            single,
            merge,
            shard_of if kind in (SCHEDULE, model.LIMIT) else None,
            arguments.audit_of(kind, how),
            how.get("transactional"),
            self.turn,
        )

    def ask(self, request: Request) -> Any:
        """Ask the holders: send a request, and return its results; within the caller's transaction only send it."""
        inbox = self._inbox(request.transactional) if request.kind in JOINABLE else None
        if inbox is not None:
            request.send_within(inbox.put_command, self.conf.shards)
            joined: TransactionalRequest[Any] = TransactionalRequest(request)
            return joined
        request.send()
        return request.chosen(request.receive())

    def joins_transaction(self, how: Any) -> bool:
        """Whether a request for schedules with these options would be part of the caller's transaction."""
        return self._inbox(how.get("transactional")) is not None

    def _inbox(self, option: bool | None) -> TransactionalInbox | None:
        """Return the inbox of the caller's transaction; None for a request outside of one."""
        if not is_transactional(self.conf.app, option):
            return None
        inbox = inbox_of(self.conf.app)
        return inbox if option or inbox.in_transaction else None

    # -- async twins: see ``requests.asynchronous`` ---------------------------------------------------

    acancel = twin(cancel)
    acancel_all = twin(cancel_all)
    areschedule = twin(reschedule)
    arun_now = twin(run_now)
    arequeue = twin(requeue)
    areplay = twin(replay)
    acomplete = twin(complete)
    apause = twin(pause)
    aunknown_gate = twin(unknown_gate)
    aresume = twin(resume)
    aaccept_clock = twin(accept_clock)
    aerase = twin(erase)

    # -- scheduling -----------------------------------------------------------------------------------

    def schedule_many(self, /, rows: Iterable[Any], **options: Any) -> ScheduleResult:
        """Schedule very many tasks without the broker; see ``celery_wheel.bulk_load.schedule_many``."""
        from celery_wheel.bulk_load import schedule_many  # imports Celery, which queries do not need

        return schedule_many(self.conf.app, self.store, rows, **options)

    aschedule_many = twin(schedule_many)


def wheel_of(app: Any) -> Wheel:
    """Return the app's ``Wheel``; each app has one."""
    real: Any = getattr(app, "_get_current_object", lambda: app)()  # behind current_app's proxy
    wheel: Wheel | None = vars(real).get("_wheel")
    return wheel or vars(real).setdefault("_wheel", Wheel(real))
