"""``Schedules``: queries and commands of ``app.wheel.schedules``, for one name, several, or all that a filter selects.

A filter's names are read page by page, AT_ONCE in a request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal, TypedDict, Unpack, overload

from celery_wheel.conf import Conf
from celery_wheel.errors import ArgumentError, RecurrenceError, RequestInDoubt, ScheduleExists, WheelUnavailable
from celery_wheel.recurring.definition import BACKFILL_OVERLAPS, dumped, read_definition
from celery_wheel.recurring.local import zone_of
from celery_wheel.requests import arguments
from celery_wheel.requests.arguments import CommandOptions, RequestOptions
from celery_wheel.requests.asynchronous import twin
from celery_wheel.requests.request import Asker, Names, Request, TransactionalRequest
from celery_wheel.requests.results import OnlyAnswer, ScheduleAnswer
from celery_wheel.requests.schedules import definitions
from celery_wheel.requests.schedules.definitions import Duration
from celery_wheel.store.model import SHARD_BITS
from celery_wheel.store.schedule_model import SCHEDULE, ScheduleCriteria, ScheduleDetail, schedule_before
from celery_wheel.values import ItemPage, json_object, pages_of, parts

Several = Iterable[str] | ScheduleCriteria
Answers = dict[str, ScheduleAnswer]
InTransaction = TransactionalRequest[ScheduleAnswer]
Exists = Literal["error", "update"]
BackfillOverlap = Literal["allow", "skip", "queue_one", "queue_all", "cancel_running"]

#: Names in one request, which has one time-out.
AT_ONCE = 5_000

_HOW = tuple(CommandOptions.__annotations__)
#: The most schedules of a page, and instants of a preview.
MOST = 10_000


class Where(TypedDict, total=False):
    """The filter of schedules; a field that is not given does not filter."""

    prefix: str  #: the beginning of the name
    part: str  #: a part of the name; case is ignored
    source: str
    task: str
    queue: str  #: as the schedule names it
    paused: bool
    broken: bool
    shard: int


@dataclass(frozen=True, slots=True, repr=False)
class ScheduleListing(ItemPage[definitions.RecurringSchedule]):
    """A page of schedules. ``next`` is the ``after`` of the next page; None on the last page."""

    items: list[definitions.RecurringSchedule]
    next: str | None


class CreateFields(definitions.DefinitionFields, CommandOptions, total=False):
    """Policies and options of a schedule, and options of the request: the keyword arguments of ``create``."""

    check_task: bool


class UpdateFields(definitions.DefinitionChanges, CommandOptions, total=False):
    """Values of a definition, and options of the request: the keyword arguments of ``update``."""

    check_task: bool


class Schedules:
    """The recurring schedules of one app.

    A change returns a ``ScheduleAnswer``: ``done``, ``already`` (the schedule was so before), ``unknown`` (there is no
    schedule of that name) or ``refused``. For a single name, a refused change raises RecurrenceError. ``too_late`` of
    the answer has the instants of occurrences to withdraw that were dispatched, or may have been.

    Every change takes ``reason``, ``actor`` and ``timeout`` as ``Wheel.cancel`` does, and raises WheelUnavailable, with
    the certain results, when no holder answers in time; the request is withdrawn then. With ``transactional=True``, and
    inside an atomic block where ``wheel_transactional`` is set, it is part of the caller's transaction, and the call
    returns a ``TransactionalRequest``.
    """

    def __init__(self, wheel: Asker) -> None:
        self._wheel = wheel

    @property
    def conf(self) -> Conf:
        """The settings of the app."""
        return self._wheel.conf

    # -- queries, which the store alone answers -------------------------------------------------------

    def where(self, **criteria: Unpack[Where]) -> ScheduleCriteria:
        """Return a filter of schedules, for the commands; without criteria it selects all."""
        for name, value in criteria.items():
            if name in ("paused", "broken") and not isinstance(value, bool | None):
                raise TypeError(f"{name} must be True or False, got {value!r:.60}")
            if name == "shard" and not (value is None or (type(value) is int and 0 <= value < 1 << SHARD_BITS)):
                raise TypeError(f"shard must be the number of a shard, got {value!r:.60}")
            if name in ("prefix", "part", "source", "task", "queue") and value is not None:
                arguments.text_of(name, value, 0)
        return ScheduleCriteria(**criteria)

    def get(self, name: str) -> definitions.RecurringSchedule | None:
        """Return the schedule of a name; None where there is none."""
        detail = self._detail(name)
        return None if detail is None or detail.schedule is None else definitions.schedule_view(detail.schedule)

    def history(self, name: str) -> definitions.ScheduleHistory | None:
        """Return the last runs, skips and revisions of a schedule, also of a deleted one; None for an unknown name."""
        detail = self._detail(name)
        return None if detail is None else definitions.history_view(detail)

    def preview(
        self, what: Any, n: int = 20, *, after: datetime | None = None, **fields: Unpack[definitions.RecurrenceFields]
    ) -> list[datetime]:
        """Return the next ``n`` instants, in the zone of the schedule.

        Args:
            what: the name of a schedule, or a recurrence as for ``create``, with ``fields`` for its zone and limits. A
                text that names no schedule is read as a crontab.
            after: the instants are after this one; None: now.

        Raises LookupError for an unknown name, and RecurrenceError for a recurrence that never fires.
        """
        from celery_wheel.recurring.crontab import is_crontab  # imports Celery's parser

        made, n = 0, arguments.count_of("n", n, MOST)
        detail = self._detail(what) if isinstance(what, str) else None
        if detail is not None and detail.schedule is not None:
            recurrence, made = read_definition(detail.schedule.definition).recurrence, detail.schedule.made
        elif isinstance(what, str) and not is_crontab(what):
            raise LookupError(f"there is no schedule {what!r:.100}")
        else:
            recurrence = definitions.recurrence_of(self.conf.app, {**fields, "recurrence": what})
        after_ms = arguments.instant_ms("after", self.conf.app.now() if after is None else after)
        zone = zone_of(recurrence.zone) or UTC
        return [definitions.moment(at_ms).astimezone(zone) for at_ms in recurrence.preview(after_ms, n, made)]

    def _detail(self, name: str) -> ScheduleDetail | None:
        return self._wheel.store.browse.schedule(_name(name))

    def _definition_at(self, name: str, revision: int) -> Any:
        detail = self._detail(name)
        if detail is None or detail.schedule is None:
            return {}  # the holder answers that there is none
        texts = {detail.schedule.revision: detail.schedule.definition}
        own = [one for one in detail.revisions if one.schedule == detail.schedule.id]
        texts |= {one.number - 1: before.definition for one in own if (before := schedule_before(one))}
        if revision not in texts:
            kept = f"{min(texts)} to {max(texts)}"
            raise LookupError(f"revision must be one of schedule {name!r}, got {revision!r}; the store has {kept}")
        definition = json_object(texts[revision])
        if not definition:
            raise RecurrenceError(f"schedule {name!r}: the definition of revision {revision} cannot be read")
        return definition

    # -- commands -------------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        recurrence: Any,
        task: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        exists: Exists = "error",
        source: str = "api",
        **fields: Unpack[CreateFields],
    ) -> ScheduleAnswer:
        """Create a schedule: ``task`` runs at each instant of the recurrence.

        Args:
            name: unique among the schedules of the store.
            recurrence: a ``Recurrence``, a spec like ``Crontab(0, 9)``, the five fields of a crontab as a text, a
                schedule of Celery, a timedelta or a number of seconds.
            task: a task or its name. A name that the app does not have is sent as it is: workers of another project
                may have the task. It is refused where the app has other tasks of the same module, unless
                ``check_task=False`` is given.
            args, kwargs: of the task, as values of JSON.
            exists: "error" raises ScheduleExists where the name is in use; "update" replaces its definition.
            source: for programs that follow another list of schedules; see ``where``.
            fields: ``zone``, ``start``, ``until``, ``times``, ``without``, ``gap`` and ``fold`` of the recurrence;
                the policies ``catch_up``, ``catch_up_window``, ``overlap``, ``max_runtime``, ``jitter`` and
                ``jitter_by``; options of ``apply_async`` like ``queue`` and ``priority``; ``expires`` counts from the
                instant. Datetimes need a time zone; durations are seconds or a timedelta.
        """
        do = _creating(exists)
        values, how = _split({**fields, "recurrence": recurrence, "task": task, "args": args, "kwargs": kwargs})
        self._check_task(values, set())
        definition = definitions.definition_of(self.conf.app, values)
        found: ScheduleAnswer = self.change(
            do, {_name(name): definition}, how, single=name, worded=definitions.in_arguments, source=source
        )
        if do == "create" and isinstance(found, ScheduleAnswer) and found.result == "already":
            raise ScheduleExists(
                f'schedule {name!r} exists already; nothing was changed; exists="update" replaces its definition, and '
                "update() changes parts of it"
            )
        return found

    def create_many(
        self,
        schedules: Mapping[str, Mapping[str, Any]] | Iterable[tuple[str, Mapping[str, Any]]],
        *,
        exists: Exists = "error",
        source: str = "api",
        **how: Unpack[CommandOptions],
    ) -> Answers:
        """Create many schedules; the answer is ``already`` where a name is in use, and ``refused`` with the reason.

        Within a transaction, a definition that is refused here raises RecurrenceError, and nothing is requested.

        Args:
            schedules: name → the other arguments of ``create``, without ``exists`` and options of the request; also an
                iterator of such pairs, which is read in parts.
            exists, source, how: as for ``create``; the timeout is for each five thousand.
        """
        do, app = _creating(exists), self.conf.app
        pairs: Iterator[tuple[str, Mapping[str, Any]]] = iter(
            schedules.items() if isinstance(schedules, Mapping) else schedules
        )
        refused: Answers = {}
        good_tasks: set[str] = set()
        in_transaction = self._wheel.joins_transaction(how)

        def checked() -> Iterator[dict[str, Any]]:
            while part := list(islice(pairs, AT_ONCE)):
                found: dict[str, Any] = {}
                for name, given in map(_pair, part):
                    try:
                        values = dict(given)
                        if of_all := values.keys() & {"exists", "source", *_HOW}:
                            raise TypeError(f"{min(of_all)} is for all schedules: give it to create_many itself")
                        self._check_task(values, good_tasks)
                        found[_name(name)] = definitions.definition_of(app, values, checked=in_transaction)
                    except (RecurrenceError, ArgumentError, TypeError) as error:
                        if in_transaction:
                            raise RecurrenceError(f"schedule {name!r:.100}: {error}; nothing was requested") from error
                        refused[name] = ScheduleAnswer("refused", str(error))
                yield found

        found: Answers = self._change_parts(do, checked(), how, definitions.in_arguments, source=source)
        return {**found, **refused} if refused else found

    @overload
    def update(self, names: str | Several, *, transactional: Literal[True], **changes: Any) -> InTransaction: ...
    @overload
    def update(self, names: str, **changes: Unpack[UpdateFields]) -> ScheduleAnswer: ...  # type: ignore[overload-overlap]  # a text is one name
    @overload
    def update(self, names: Several, **changes: Unpack[UpdateFields]) -> Answers: ...
    def update(self, names: Any, **changes: Any) -> Any:
        """Change parts of a schedule, or of several; values that are not named stay as they are.

        Args:
            names: a name, several, or ``where(…)``.
            changes: as the arguments of ``create``; None sets a value to its default. A ``Recurrence`` replaces zone
                and limits too; a spec keeps them.
        """
        values, how = _split(changes)
        self._check_task(values, set())
        patch = definitions.patch_of(self.conf.app, values)
        if not patch:
            raise TypeError("update must have a value to change, got none")
        dumped(patch)  # names a value that JSON does not have
        return self._each("patch", names, how, patch)

    @overload
    def delete(
        self, names: str | Several, *, transactional: Literal[True], **how: Unpack[RequestOptions]
    ) -> InTransaction: ...
    @overload
    def delete(self, names: str, **how: Unpack[CommandOptions]) -> ScheduleAnswer: ...  # type: ignore[overload-overlap]  # a text is one name
    @overload
    def delete(self, names: Several, **how: Unpack[CommandOptions]) -> Answers: ...
    def delete(self, names: Any, **how: Any) -> Any:
        """Delete a schedule, or several, and withdraw their pending occurrences. Their revisions stay."""
        return self._each("delete", names, how)

    @overload
    def pause(
        self, names: str | Several, note: str = "", *, transactional: Literal[True], **how: Unpack[RequestOptions]
    ) -> InTransaction: ...
    @overload
    def pause(self, names: str, note: str = "", **how: Unpack[CommandOptions]) -> ScheduleAnswer: ...  # type: ignore[overload-overlap]  # a text is one name
    @overload
    def pause(self, names: Several, note: str = "", **how: Unpack[CommandOptions]) -> Answers: ...
    def pause(self, names: Any, note: str = "", **how: Any) -> Any:
        """Pause a schedule, or several, and withdraw their pending occurrences, except requested ones.

        Args:
            note: the reason, which the schedule shows until it is resumed.
        """
        return self._each("pause", names, {**how, "reason": note or how.get("reason", "")})

    @overload
    def resume(
        self, names: str | Several, *, transactional: Literal[True], **how: Unpack[RequestOptions]
    ) -> InTransaction: ...
    @overload
    def resume(self, names: str, **how: Unpack[CommandOptions]) -> ScheduleAnswer: ...  # type: ignore[overload-overlap]  # a text is one name
    @overload
    def resume(self, names: Several, **how: Unpack[CommandOptions]) -> Answers: ...
    def resume(self, names: Any, **how: Any) -> Any:
        """Resume a paused or broken schedule, or several: at the next instant after now."""
        return self._each("resume", names, how)

    @overload
    def trigger(
        self, names: str | Several, *, transactional: Literal[True], **how: Unpack[RequestOptions]
    ) -> InTransaction: ...
    @overload
    def trigger(self, names: str, **how: Unpack[CommandOptions]) -> ScheduleAnswer: ...  # type: ignore[overload-overlap]  # a text is one name
    @overload
    def trigger(self, names: Several, **how: Unpack[CommandOptions]) -> Answers: ...
    def trigger(self, names: Any, **how: Any) -> Any:
        """Run the task of a schedule now, or of several, beside their own instants, also of paused ones.

        The answer has the id of the task. The run counts to no limit of times, and no overlap policy holds it back.
        """
        return self._each("trigger", names, how)

    def backfill(
        self,
        name: str,
        first: datetime,
        last: datetime,
        *,
        overlap: BackfillOverlap | None = None,
        every: Duration | None = None,
        **how: Unpack[CommandOptions],
    ) -> ScheduleAnswer:
        """Run the task for the past instants from ``first`` to ``last``, both included, at most a thousand.

        Instants that the schedule itself has yet to make are left to it; a time without any other instant is refused.
        The answer has the ids of the tasks, which can be cancelled as any pending task; its ``reason`` says how many
        instants the policy left out.

        Args:
            overlap: the policy for these runs; None: that of the schedule. "allow" runs all instants at once, "skip"
                the first one unless a run is going on, "queue_one" the first and then the last, or only the last while
                a run is going on, "cancel_running" the last, in place of the run that is going on. "queue_all" runs
                each instant when the run before it is over.
            every: the time between the starts of two runs, with "allow"; None: all are due now.
        """
        times: dict[str, Any] = {
            "from_ms": arguments.instant_ms("first", first),
            "upto_ms": arguments.instant_ms("last", last),
        }
        if times["upto_ms"] < times["from_ms"]:
            raise ArgumentError(f"last must be at or after first ({first.isoformat()}), got {last.isoformat()}")
        if overlap not in (None, *BACKFILL_OVERLAPS):
            raise ArgumentError(f"overlap must be one of {', '.join(BACKFILL_OVERLAPS)}, got {overlap!r:.60}")
        every_ms = 0 if every is None else arguments.duration_ms("every", every)
        found: ScheduleAnswer = self.change(
            "backfill", [_name(name)], how, single=name, **times, every_ms=every_ms, overlap=overlap
        )
        return found

    def rollback(self, name: str, revision: int, **how: Unpack[CommandOptions]) -> ScheduleAnswer:
        """Give a schedule the definition that it had at a revision; see ``history``. This is a new revision.

        Raises LookupError where the store does not have that revision.
        """
        definition = self._definition_at(name, revision)
        found: ScheduleAnswer = self.change("rollback", {name: definition}, how, single=name)
        return found

    def change(
        self,
        do: str,
        names: Names,
        how: Any = None,
        *,
        single: str | None = None,
        worded: Any = str,
        **options: Any,
    ) -> Any:
        """Send one change of schedules, as ``celery_wheel.engine.recurring.change`` describes them, in one request.

        Args:
            names: names, or for a change with definitions name → definition, as JSON.
            how: reason, actor, timeout, transactional.
            single: the only name, whose answer is returned; RecurrenceError is raised where it is refused.
            worded: a function that rewrites the reason of a refusal.
            options: fields of the command, like ``source``.
        """
        request = self._wheel.request(SCHEDULE, names, single, how or {}, _fields(do, how, options), OnlyAnswer(worded))
        found = self._wheel.ask(request)
        if isinstance(found, ScheduleAnswer) and found.result == "refused":
            raise RecurrenceError(f"schedule {single!r}: {found.reason}")
        return found

    aget = twin(get)
    ahistory = twin(history)
    apreview = twin(preview)
    acreate = twin(create)
    acreate_many = twin(create_many)
    aupdate = twin(update)
    adelete = twin(delete)
    apause = twin(pause)
    aresume = twin(resume)
    atrigger = twin(trigger)
    abackfill = twin(backfill)
    arollback = twin(rollback)

    def _check_task(self, values: dict[str, Any], good: set[str]) -> None:
        """Check the name of a task among the values, once for all schedules, and take ``check_task`` out of them."""
        name = values.get("task")
        if values.pop("check_task", True) and isinstance(name, str) and name not in good:
            arguments.check_task_name(self.conf.app, name)
            good.add(name)

    def _each(self, do: str, names: Any, how: Any, patch: dict[str, Any] | None = None) -> Any:
        """Carry out one change of each name; ``patch`` is the part of an update."""

        def with_patch(part: Sequence[str]) -> Names:
            return part if patch is None else dict.fromkeys(part, patch)

        worded = str if patch is None else definitions.in_arguments
        if isinstance(names, str):
            return self.change(do, with_patch(arguments.texts_of("a name", names)), how, single=names, worded=worded)
        selected = isinstance(names, ScheduleCriteria)
        found = self._selected(names) if selected else parts(arguments.texts_of("a name", names), AT_ONCE)
        return self._change_parts(do, map(with_patch, found), how, worded)

    def _change_parts(
        self, do: str, changes: Iterator[Any], how: Any, worded: Callable[[str], str], **options: Any
    ) -> Any:
        if self._wheel.joins_transaction(how):
            whole = list(changes)
            names: Any = [name for part in whole for name in part]
            if whole and isinstance(whole[0], Mapping):
                names = {name: body for part in whole for name, body in part.items()}
            return self.change(do, names, how, worded=worded, **options)
        fields, timeout_s = _fields(do, how, options), arguments.timeout_of(how)
        found: Answers = {}
        sent: deque[Request] = deque()  # the holders carry out one while the next is made
        try:
            for part in filter(None, changes):
                sent.append(self._wheel.request(SCHEDULE, part, None, how, fields, OnlyAnswer(worded)))
                sent[-1].send()
                if len(sent) > 1:
                    found |= sent.popleft().receive(timeout_s)
            while sent:
                found |= sent.popleft().receive(timeout_s)
        except (WheelUnavailable, RequestInDoubt) as error:
            for request in sent:
                found |= _certain(request, error)
            error.results = {**found, **error.results}
            raise
        except BaseException as error:
            for request in sent:
                request.withdraw(error)
            raise
        return found

    def _selected(self, criteria: ScheduleCriteria) -> Iterator[list[str]]:
        pages = pages_of(lambda after: self._wheel.store.browse.schedules(criteria, after, AT_ONCE), "")
        return ([one.name for one in page.items] for page in pages)

    def list(self, *, after: str = "", limit: int = 100, **criteria: Unpack[Where]) -> ScheduleListing:
        """Return a page of schedules in the order of their names; a page before the last may be short."""
        most = arguments.count_of("limit", limit, MOST)
        page = self._wheel.store.browse.schedules(self.where(**criteria), arguments.text_of("after", after, 0), most)
        return ScheduleListing([definitions.schedule_view(one) for one in page.items], page.next)

    alist = twin(list)


def _certain(request: Request, error: WheelUnavailable | RequestInDoubt) -> Answers:
    """Return the results that a request has by now, and withdraw the rest of it; a failure is noted in the error."""
    try:
        return request.receive(0)
    except WheelUnavailable as late:
        return late.results
    except RequestInDoubt as doubt:
        error.add_note(str(doubt))
        return doubt.results


def _fields(do: str, how: Mapping[str, Any] | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a command; raises for a misspelt option of the request, before anything is sent."""
    if unknown := (how or {}).keys() - set(_HOW):
        raise TypeError(f"{do} got an unknown option {min(unknown)!r}; there are {', '.join(_HOW)}")
    if "source" in options:
        arguments.text_of("source", options["source"])
    return {"do": do, **options}


def _creating(exists: Any) -> str:
    if exists not in ("error", "update"):
        raise ValueError(f'exists must be "error" or "update", got {exists!r:.60}')
    return "create" if exists == "error" else "put"


def _name(name: Any) -> str:
    return arguments.text_of("a name", name)


def _pair(one: Any) -> tuple[Any, Mapping[str, Any]]:
    if isinstance(one, tuple | list) and len(one) == 2 and isinstance(one[1], Mapping):
        return one[0], one[1]
    raise TypeError(
        "schedules must be a dict from name to arguments, or pairs of them, like "
        f'("report", {{"recurrence": 3600, "task": "app.report"}}), got {one!r:.100}'
    )


def _split(fields: Mapping[str, Any]) -> tuple[dict[str, Any], CommandOptions]:
    """Return the values of a definition, and the options of the request."""
    how: Any = {name: value for name, value in fields.items() if name in _HOW}
    return {name: value for name, value in fields.items() if name not in _HOW}, how
