"""The queries of ``app.wheel.schedules``, which the store alone answers, and previews, which need no store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TypedDict, Unpack

from celery_wheel.conf import Conf
from celery_wheel.errors import RecurrenceError
from celery_wheel.recurring.definition import read_definition
from celery_wheel.recurring.local import zone_of
from celery_wheel.requests.arguments import count_of, instant_ms, text_of
from celery_wheel.requests.asynchronous import twin
from celery_wheel.requests.request import Names, Request
from celery_wheel.requests.results import Merge
from celery_wheel.requests.schedules.definitions import (
    RecurrenceFields,
    RecurringSchedule,
    ScheduleHistory,
    history_view,
    moment,
    recurrence_of,
    schedule_view,
)
from celery_wheel.store.model import SHARD_BITS
from celery_wheel.store.ports import FullStore
from celery_wheel.store.schedule_model import ScheduleCriteria, ScheduleDetail, schedule_before
from celery_wheel.values import ItemPage, json_object

#: The most schedules of a page, and instants of a preview.
MOST_LISTED, MOST_INSTANTS = 10_000, 10_000

_FLAGS, _TEXTS = ("paused", "broken"), ("prefix", "part", "source", "task", "queue")


class Asker(Protocol):
    """``Wheel``, which sends the requests; its room stands above this one."""

    conf: Conf

    @property
    def store(self) -> FullStore: ...

    def request(
        self,
        kind: str,
        names: Names,
        single: str | None,
        how: Any,
        options: Mapping[str, Any] | None = None,
        merge: Merge[Any] | None = None,
    ) -> Request: ...

    def ask(self, request: Request) -> Any: ...

    def joins_transaction(self, how: Any) -> bool: ...


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
class ScheduleListing(ItemPage[RecurringSchedule]):
    """A page of schedules. ``next`` is the ``after`` of the next page; None on the last page."""

    items: list[RecurringSchedule]
    next: str | None


class ScheduleQueries:
    """A part of ``Schedules``."""

    def __init__(self, wheel: Asker) -> None:
        self._wheel = wheel

    @property
    def conf(self) -> Conf:
        """The settings of the app."""
        return self._wheel.conf

    def where(self, **criteria: Unpack[Where]) -> ScheduleCriteria:
        """Return a filter of schedules, for the commands; without criteria it selects all."""
        for name, value in criteria.items():
            if name in _FLAGS and not isinstance(value, bool | None):
                raise TypeError(f"{name} must be True or False, got {value!r:.60}")
            if name == "shard" and not (value is None or (type(value) is int and 0 <= value < 1 << SHARD_BITS)):
                raise TypeError(f"shard must be the number of a shard, got {value!r:.60}")
            if name in _TEXTS and value is not None:
                text_of(name, value, 0)
        return ScheduleCriteria(**criteria)

    def get(self, name: str) -> RecurringSchedule | None:
        """Return the schedule of a name; None where there is none."""
        detail = self._detail(name)
        return None if detail is None or detail.schedule is None else schedule_view(detail.schedule)

    def history(self, name: str) -> ScheduleHistory | None:
        """Return the last runs, skips and revisions of a schedule, also of a deleted one; None for an unknown name."""
        detail = self._detail(name)
        return None if detail is None else history_view(detail)

    def preview(
        self, what: Any, n: int = 20, *, after: datetime | None = None, **fields: Unpack[RecurrenceFields]
    ) -> list[datetime]:
        """Return the next ``n`` instants, in the zone of the schedule.

        Args:
            what: the name of a schedule, or a recurrence as for ``create``, with ``fields`` for its zone and limits.
            after: the instants are after this one; None: now.

        Raises LookupError for an unknown name, and RecurrenceError for a recurrence that never fires.
        """
        made, n = 0, count_of("n", n, MOST_INSTANTS)
        if isinstance(what, str):
            detail = self._detail(what)
            if detail is None or detail.schedule is None:
                raise LookupError(f"there is no schedule {what!r:.100}")
            recurrence, made = read_definition(detail.schedule.definition).recurrence, detail.schedule.made
        else:
            recurrence = recurrence_of(self.conf.app, {**fields, "recurrence": what})
        after_ms = instant_ms("after", self.conf.app.now() if after is None else after)
        zone = zone_of(recurrence.zone) or UTC
        return [moment(at_ms).astimezone(zone) for at_ms in recurrence.preview(after_ms, n, made)]

    def _detail(self, name: str) -> ScheduleDetail | None:
        return self._wheel.store.browse.schedule(text_of("a name", name))

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

    def list(self, *, after: str = "", limit: int = 100, **criteria: Unpack[Where]) -> ScheduleListing:
        """Return a page of schedules in the order of their names; a page before the last may be short."""
        most = count_of("limit", limit, MOST_LISTED)
        page = self._wheel.store.browse.schedules(self.where(**criteria), text_of("after", after, 0), most)
        return ScheduleListing([schedule_view(one) for one in page.items], page.next)

    aget = twin(get)
    ahistory = twin(history)
    apreview = twin(preview)
    alist = twin(list)
