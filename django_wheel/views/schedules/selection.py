"""The selection of schedules that a browser sent: their names, without those that follow another source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import ngettext_lazy

from celery_wheel.broker import shard_of
from celery_wheel.control import Wheel
from celery_wheel.values.text import text_rule
from django_wheel.formats import counted, number, printable
from django_wheel.views.schedules.actions import EDITABLE, ROLLBACK, ScheduleAction
from django_wheel.views.selection import SelectionError

#: Schedules in one request; Django accepts no more than a thousand fields in a form.
MAX_SCHEDULES = 500
#: Names in a message.
NAMES = 20

_FOLLOWING = ngettext_lazy(
    "%(number)s selected schedule follows another source, and is changed there: %(names)s.",
    "%(number)s selected schedules follow another source, and are changed there: %(names)s.",
    "count",
)


@dataclass(frozen=True, slots=True)
class ScheduleSelection:
    names: list[str]  #: also of schedules that do not exist any more: their holder answers "unknown"
    following: list[str]  #: left out

    @property
    def problems(self) -> str:
        """A sentence about the schedules that are left out; empty if there are none."""
        return counted(_FOLLOWING, len(self.following), names=listed(self.following)) if self.following else ""


def selection_of(wheel: Wheel, action: ScheduleAction, rows: Iterable[str]) -> ScheduleSelection:
    """Return the schedules on which the action is possible. Raises SelectionError where there is none."""
    names = [name for name in dict.fromkeys(rows) if text_rule(name) is None]
    if not names:
        raise SelectionError(_("Nothing was done, because no schedule was selected. Select schedules first."))
    most = 1 if action is ROLLBACK else MAX_SCHEDULES
    if len(names) > most:
        text = _("Nothing was done, because at most %(most)s schedules can be selected at once, got %(number)s.")
        raise SelectionError(text % {"most": number(most), "number": number(len(names))})
    sources = _sources(wheel, names) if action.is_of_definition else {}
    following = [name for name in names if sources.get(name, EDITABLE[0]) not in EDITABLE]
    selection = ScheduleSelection([name for name in names if name not in set(following)], following)
    if not selection.names:
        raise SelectionError(_("Nothing was done. %(problems)s") % {"problems": selection.problems})
    return selection


def listed(names: Sequence[str]) -> str:
    return ", ".join(printable(name, 60) for name in names[:NAMES]) + (" …" if len(names) > NAMES else "")


def _sources(wheel: Wheel, names: Sequence[str]) -> dict[str, str]:
    """Return name → source of the schedules that exist."""
    store, by_shard = wheel.store, dict[int, list[str]]()
    for name in names:
        by_shard.setdefault(shard_of(None, name, store.shards), []).append(name)
    return {one.name: one.source for shard, part in by_shard.items() for one in store.schedules_named(shard, part)}
