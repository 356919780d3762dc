"""The revisions of a schedule, each with the values that it changed, and whether the schedule can be rolled back to it.

::

    revision 3    before: the schedule as revision 2 left it    after: ``before`` of revision 4, or the schedule itself
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from celery_wheel.store.schedule_model import Revision, ScheduleDetail
from celery_wheel.values import json_object
from django_wheel.views.payload import Sight, shortened
from django_wheel.views.schedules.actions import EDITABLE

LABELS: dict[str, Promise] = {
    "created": _("created"),
    "changed": _("changed"),
    "paused": _("paused"),
    "resumed": _("resumed"),
    "deleted": _("deleted"),
    "imported": _("imported"),
    "rolled back": _("rolled back"),
}


@dataclass(frozen=True, slots=True)
class ValueChange:
    """A value that a revision changed; ``before`` or ``after`` is empty where there was or is no value."""

    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class RevisionLine:
    revision: Revision
    changes: list[ValueChange]
    can_roll_back: bool  #: its definition can be read, and is another than the schedule has

    @property
    def label(self) -> str | Promise:
        return LABELS.get(self.revision.what, self.revision.what)


def revision_lines(detail: ScheduleDetail, sight: Sight) -> list[RevisionLine]:
    """Return the revisions, the latest first."""
    schedule, lines = detail.schedule, []
    befores = {(one.schedule, one.number): one.before for one in detail.revisions}
    for one in detail.revisions:
        if schedule is not None and (one.schedule, one.number) == (schedule.id, schedule.revision):
            after: str | None = schedule.definition
        else:
            after = _definition(befores.get((one.schedule, one.number + 1), ""))
        before = _definition(one.before)
        changed = [] if one.what == "deleted" or after is None else list(_changes(_values(before), _values(after)))
        changes = list(dict.fromkeys(_seen(each, sight) for each in changed))
        is_own = schedule is not None and one.schedule == schedule.id and schedule.source in EDITABLE
        is_other = schedule is not None and after != schedule.definition and bool(json_object(after or ""))
        lines.append(RevisionLine(one, changes, can_roll_back=is_own and is_other))
    return lines


def _seen(change: ValueChange, sight: Sight) -> ValueChange:
    """Return a change as the user sees it: within the payload, keys are values as well."""
    path = change.path if sight.may else shortened(change.path)
    return ValueChange(path, *(sight.changed_value(change.path, text) for text in (change.before, change.after)))


def _definition(schedule: str) -> str | None:
    """Return the definition in the JSON of a Schedule; None without one."""
    found = json_object(schedule).get("definition")
    return found if isinstance(found, str) else None


def _values(definition: str | None) -> dict[str, str]:
    if definition is None:
        return {}
    try:
        return dict(_paths(json.loads(definition), ""))
    except (ValueError, RecursionError):
        return {"": definition}


def _paths(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _paths(inner, f"{path}.{name}" if path else name)
    else:
        yield path, json.dumps(value, ensure_ascii=False)


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[ValueChange]:
    for path in sorted({*before, *after}):
        if before.get(path) != after.get(path):
            yield ValueChange(path, before.get(path, ""), after.get(path, ""))
