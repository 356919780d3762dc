"""The commands of ``app.wheel.schedules``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, Unpack, overload

from celery_wheel.conf import Conf
from celery_wheel.errors import RecurrenceError, ScheduleExists
from celery_wheel.requests.arguments import CommandOptions, RequestOptions, names_of
from celery_wheel.requests.request import Names, Request, TransactionalRequest
from celery_wheel.requests.results import Merge, OnlyAnswer, Result, ScheduleAnswer
from celery_wheel.requests.schedules.definitions import Changes, DefinitionFields, definition_of, patch_of
from celery_wheel.store.ports import FullStore
from celery_wheel.store.schedule_model import SCHEDULE

Answer = ScheduleAnswer | dict[str, ScheduleAnswer] | TransactionalRequest[ScheduleAnswer]
Exists = Literal["error", "update"]

_HOW = ("reason", "actor", "timeout", "transactional")


class Asker(Protocol):
    """The part of ``Wheel`` that sends requests."""

    conf: Conf

    @property
    def store(self) -> FullStore: ...

    def request(
        self, merge: Merge[Result], kind: str, options: dict[str, Any], how: RequestOptions, list_name: str
    ) -> Request[Result]: ...

    def ask(
        self, request: Request[Result], names: Names, how: CommandOptions, single: str | None
    ) -> Result | dict[str, Result] | TransactionalRequest[Result]: ...


class CreateFields(DefinitionFields, CommandOptions, total=False):
    """Policies and options of a schedule, and options of the request."""


class UpdateFields(Changes, CommandOptions, total=False):
    """Values of a definition, and options of the request."""


class Schedules:
    """The recurring schedules of one app.

    A change has a ``ScheduleAnswer``: ``done``, ``already`` (the schedule was so before), ``unknown`` (there is none of
    that name) or ``refused``. For a single name, a refused definition raises RecurrenceError. ``too_late`` of the
    answer has the instants whose occurrences the change should withdraw, and which were dispatched or may have been.

    Every change takes ``reason``, ``actor``, ``timeout`` and ``transactional`` as ``Wheel.cancel`` does, and raises
    WheelUnavailable, with the certain results, when no holder answers in time; the request is withdrawn then.
    """

    def __init__(self, wheel: Asker) -> None:
        self._wheel = wheel

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
            recurrence: a ``Recurrence``, a spec like ``Crontab("0", "9")``, a schedule of Celery, a timedelta or a
                number of seconds.
            task: a task or its name.
            args, kwargs: of the task, as values of JSON.
            exists: "error" raises ScheduleExists where the name is in use; "update" replaces its definition.
            source: for programs that follow another list of schedules; see ``list``.
            fields: ``zone``, ``start``, ``until``, ``times``, ``without``, ``gap`` and ``fold`` of the recurrence;
                the policies ``catch_up``, ``catch_up_window``, ``overlap``, ``max_runtime``, ``jitter`` and
                ``jitter_by``; options of ``apply_async`` like ``queue`` and ``priority``; ``expires`` counts from the
                instant. Datetimes need a time zone; durations are seconds or a timedelta.
        """
        if exists not in ("error", "update"):
            raise ValueError(f'exists must be "error" or "update", got {exists!r:.60}')
        values, how = _split({**fields, "recurrence": recurrence, "task": task, "args": args, "kwargs": kwargs})
        definition = definition_of(self._wheel.conf.app, values)
        do = "create" if exists == "error" else "put"
        found: ScheduleAnswer = self.change(do, {_name(name): definition}, single=True, source=source, how=how)
        if do == "create" and isinstance(found, ScheduleAnswer) and found.result == "already":
            raise ScheduleExists(
                f'schedule {name!r} exists already; nothing was changed; exists="update" replaces its definition, and '
                "update() changes parts of it"
            )
        return found

    @overload
    def update(self, names: str, **changes: Unpack[UpdateFields]) -> ScheduleAnswer: ...  # type: ignore[overload-overlap]  # a text is one name
    @overload
    def update(self, names: Iterable[str], **changes: Unpack[UpdateFields]) -> dict[str, ScheduleAnswer]: ...
    def update(self, names: Any, **changes: Any) -> Any:
        """Change parts of a schedule, or of several; values that are not named stay as they are.

        Args:
            changes: as the arguments of ``create``; None sets a value to its default. A ``Recurrence`` replaces zone
                and limits too; a spec keeps them.
        """
        values, how = _split(changes)
        patch = patch_of(self._wheel.conf.app, values)
        if not patch:
            raise TypeError("update must have a value to change, got none")
        return self.change("patch", dict.fromkeys(names_of(names), patch), single=isinstance(names, str), how=how)

    @overload
    def delete(self, names: str, **how: Unpack[CommandOptions]) -> ScheduleAnswer: ...  # type: ignore[overload-overlap]  # a text is one name
    @overload
    def delete(self, names: Iterable[str], **how: Unpack[CommandOptions]) -> dict[str, ScheduleAnswer]: ...
    def delete(self, names: Any, **how: Any) -> Any:
        """Delete a schedule, or several, and withdraw their pending occurrences. Their revisions stay."""
        return self.change("delete", names_of(names), single=isinstance(names, str), how=how)

    @overload
    def pause(self, names: str, note: str = "", **how: Unpack[CommandOptions]) -> ScheduleAnswer: ...  # type: ignore[overload-overlap]  # a text is one name
    @overload
    def pause(
        self, names: Iterable[str], note: str = "", **how: Unpack[CommandOptions]
    ) -> dict[str, ScheduleAnswer]: ...
    def pause(self, names: Any, note: str = "", **how: Any) -> Any:
        """Pause a schedule, or several, and withdraw their pending occurrences, but those that users asked for.

        Args:
            note: shown with the schedule until it is resumed; also the reason of the change where none is given.
        """
        how = {"reason": note, **how}
        return self.change("pause", names_of(names), single=isinstance(names, str), how=how)

    @overload
    def resume(self, names: str, **how: Unpack[CommandOptions]) -> ScheduleAnswer: ...  # type: ignore[overload-overlap]  # a text is one name
    @overload
    def resume(self, names: Iterable[str], **how: Unpack[CommandOptions]) -> dict[str, ScheduleAnswer]: ...
    def resume(self, names: Any, **how: Any) -> Any:
        """Resume a paused or broken schedule, or several: at the next instant after now."""
        return self.change("resume", names_of(names), single=isinstance(names, str), how=how)

    def rollback(self, name: str, revision: int, **how: Unpack[CommandOptions]) -> ScheduleAnswer:
        """Give a schedule the definition that it had at a revision; see ``history``. This is a new revision.

        Raises LookupError where the store no longer has that revision, or never had it.
        """
        definition = self._definition_at(_name(name), revision)
        found: ScheduleAnswer = self.change("rollback", {name: definition}, single=True, how=how)
        return found

    def change(self, do: str, names: Names, *, single: bool = False, how: Any = None, **options: Any) -> Any:
        """Send one change of schedules, as ``celery_wheel.engine.recurring.change`` describes them.

        Args:
            names: names, or for a change with definitions name → definition, as JSON.
            single: return the answer of the only name, and raise RecurrenceError where it is refused.
            how: reason, actor, timeout, transactional.
            options: fields of the command, like ``source``.
        """
        how = how or {}
        list_name = "definitions" if isinstance(names, Mapping) else "names"
        request = self._wheel.request(OnlyAnswer(), SCHEDULE, {"do": do, **options}, how, list_name)
        found = self._wheel.ask(request, names, how, next(iter(names)) if single else None)
        if isinstance(found, ScheduleAnswer) and found.result == "refused":
            raise RecurrenceError(f"schedule {next(iter(names))!r}: {found.reason}")
        return found

    def _definition_at(self, name: str, revision: int) -> Any:
        detail = self._wheel.store.browse.schedule(name)
        if detail is None or detail.schedule is None:
            return {}  # the holder answers that there is none
        texts = {detail.schedule.revision: detail.schedule.definition}
        own = (one for one in detail.revisions if one.schedule == detail.schedule.id and one.before)
        texts |= {one.number - 1: json.loads(one.before)["definition"] for one in own}
        if revision not in texts:
            kept = f"{min(texts)} to {max(texts)}"
            raise LookupError(f"schedule {name!r} must have had the revision, got {revision!r}; there are {kept}")
        return json.loads(texts[revision])


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a name must be a text, got {name!r:.60}")
    return names_of(name)[0]


def _split(fields: Mapping[str, Any]) -> tuple[dict[str, Any], CommandOptions]:
    """Return the values of a definition, and the options of the request."""
    how: Any = {name: value for name, value in fields.items() if name in _HOW}
    return {name: value for name, value in fields.items() if name not in _HOW}, how
