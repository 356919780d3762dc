"""The follower, which makes the store's schedules equal to a source's entries.

::

    names that the source has no more ──► delete
    its entries, AT_ONCE at a time    ──► what the store has under these names  ┌ nothing        create, after the last
                                                                                │                instant that was sent
                                                                                └ another digest update, with the anchor
                                                                                                 of a stored interval
    entries that share a recurrence,  ──► one patch of it; a name that it does not fit is missed, and comes as an entry
    and differ in nothing else
                                    refused     the entry becomes broken, with the reason
                                    already     the name is taken by another source: a clash, tried again later

Deletions are sent first, so an entry that is renamed never runs twice. Memory has the entries that were refused or
whose names are taken, and nothing of the others: a source may have a million.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from celery_wheel.recurring import Recurrence
from celery_wheel.recurring.definition import reason_not_run
from celery_wheel.requests.results import ScheduleAnswer
from celery_wheel.scheduler.sources import (
    Document,
    EntryChanges,
    Retimed,
    SourceEntry,
    broken,
    digest,
    is_of_base,
    with_anchor_of,
)
from celery_wheel.store.ports import FullStore
from celery_wheel.store.schedule_model import Schedule
from celery_wheel.values import json_object, parts
from celery_wheel.values.instants import ms_of
from celery_wheel.values.log import get_logger

logger = get_logger(__name__)

#: Sends a change of schedules: its kind, the names or definitions, and the other fields of the command.
Ask = Callable[[str, Sequence[str] | Mapping[str, Document], dict[str, Any]], Mapping[str, ScheduleAnswer]]

#: Names in one request.
AT_ONCE = 1_000

#: Takes each value of a recurrence away, in a patch.
NO_RECURRENCE = dict.fromkeys(one.name for one in fields(Recurrence) if one.init)


class Follower:
    def __init__(
        self, source: str, store: Callable[[], FullStore], ask: Ask, now_ms: Callable[[], int], hands_back: bool
    ) -> None:
        self.source = source
        self._store = store
        self._ask = ask
        self._now_ms = now_ms
        self._hands_back = hands_back
        self._refused: dict[str, bytes] = {}  #: name → digest of an entry that is not sent again before it changes
        self.clashes: dict[str, SourceEntry] = {}  #: entries whose names are taken
        self.handed_back: dict[str, int] = {}  #: name → last instant, of entries that the base scheduler runs from now

    def follow(self, changes: EntryChanges) -> list[str]:
        """Carry out the changes, and return the names of retimed entries that have to be read as a whole.

        Raises WheelUnavailable or StoreError; a part is in the store then.
        """
        gone = list(changes.gone)
        if changes.all_names is not None:
            gone += self._names_without(changes.all_names)
            for known in self._refused, self.clashes:
                for name in [one for one in known if one not in changes.all_names]:
                    del known[name]
        for name in (*gone, *changes.entries):
            self.clashes.pop(name, None)
        for part in parts(gone, AT_ONCE):
            self._delete(part)
        for part in parts(list(changes.entries), AT_ONCE):
            self._make_equal({name: changes.entries[name] for name in part})
        return [name for one in changes.retimed for name in self._retime(one)]

    def retry_clashes(self) -> None:
        """Create the entries whose names were taken, where they are free by now."""
        self._create(dict(self.clashes))

    def _names_without(self, names: Collection[str]) -> Iterator[str]:
        after = ""
        while found := self._store().browse.schedule_names(self.source, after):
            yield from (one for one in found if one not in names)
            after = found[-1]

    def _own(self, names: Sequence[str]) -> dict[str, Schedule]:
        found = schedules_named(self._store(), names)
        return {name: one for name, one in found.items() if one.source == self.source}

    def _delete(self, names: Sequence[str]) -> None:
        before = self._own(names)
        if before:
            answers = self._ask("delete", list(before), {})
            for name, one in before.items():
                self._hand_back(one, answers[name])
        for name in names:
            self._refused.pop(name, None)

    def _make_equal(self, entries: dict[str, SourceEntry]) -> None:
        before = self._own(list(entries))
        digests = {name: digest(one.document) for name, one in entries.items()}
        changed = {
            name: entries[name]
            for name, one in digests.items()
            if self._refused.get(name) != one and (name not in before or _digest_of(before[name]) != one)
        }
        self._update(before, {name: one for name, one in changed.items() if name in before})
        self._create({name: one for name, one in changed.items() if name not in before})

    def _retime(self, retimed: Retimed) -> list[str]:
        """Change the recurrences of entries. Returns the names that it does not fit: of no schedule of the source, of
        one that cannot be read, or of one that a user has changed: the entry's other parts count again, too."""
        others = self._store().browse.changed_by_others(list(retimed.entries), self.source)
        entries = {name: one for name, one in retimed.entries.items() if name not in others}
        patch = {"recurrence": {**NO_RECURRENCE, **retimed.recurrence}}
        answers = self._ask("patch", list(entries), {"definition": patch, **_times(entries)}) if entries else {}
        return [*others, *(name for name, one in answers.items() if one.result not in ("done", "already"))]

    def _update(self, before: Mapping[str, Schedule], entries: dict[str, SourceEntry]) -> None:
        if not entries:
            return
        documents = {
            name: with_anchor_of(one.document, json_object(before[name].definition)) for name, one in entries.items()
        }
        answers = self._ask("update", documents, _times(entries))
        for name, answer in answers.items():
            if answer.result == "refused":
                self._refuse("update", name, entries[name], answer)
                continue
            self._refused.pop(name, None)
            if is_of_base(entries[name]):
                self._hand_back(before[name], answer)

    def _create(self, entries: dict[str, SourceEntry]) -> None:
        if not entries:
            return
        answers = self._ask("create", {name: one.document for name, one in entries.items()}, _times(entries))
        taken = schedules_named(self._store(), [name for name in entries if answers[name].result == "already"])
        for name, entry in entries.items():
            if name in taken and taken[name].source != self.source:
                self._clash(name, entry, taken[name])
            elif answers[name].result == "refused":
                self._refuse("create", name, entry, answers[name])
            else:
                self.clashes.pop(name, None)
                self._refused.pop(name, None)

    def _refuse(self, do: str, name: str, entry: SourceEntry, answer: ScheduleAnswer) -> None:
        """Store the entry as broken, once; a name that no store can hold is in the log alone."""
        logger.error(
            "%s: the entry %r does not run: %s; correct the entry",
            self.source,
            name,
            answer.reason,
            extra={"action": "entry_refused", "source": self.source, "schedule": name},
        )
        self._ask(do, {name: broken(entry.document["task"], answer.reason).document}, {})
        self._refused[name] = digest(entry.document)

    def _clash(self, name: str, entry: SourceEntry, other: Schedule) -> None:
        if name not in self.clashes:
            logger.error(
                "%s: the entry %r does not run: a schedule of %s has that name; rename one of the two",
                self.source,
                name,
                other.source,
                extra={"action": "entry_clash", "source": self.source, "schedule": name},
            )
        self.clashes[name] = entry

    def _hand_back(self, before: Schedule | None, answer: ScheduleAnswer) -> None:
        if not self._hands_back or before is None or before.last_ms is None:
            return
        # An instant within the look-ahead may be made already; it is withdrawn, unless it was dispatched before.
        last_ms = max([min(before.last_ms, self._now_ms()), *(ms_of(at) for at in answer.too_late)])
        self.handed_back[before.name] = last_ms


def schedules_named(store: FullStore, names: Sequence[str]) -> dict[str, Schedule]:
    """Return the store's schedules with these names, of all sources."""
    return {one.name: one for _, one in store.schedules_named(names)}


def _times(entries: Mapping[str, SourceEntry]) -> dict[str, Any]:
    """Return the options of a command after which instants schedules begin, or go on."""
    return {
        time: {name: at_ms for name, one in entries.items() if (at_ms := getattr(one, time)) is not None}
        for time in ("after_ms", "edited_ms")
    }


def _digest_of(schedule: Schedule) -> bytes:
    """Return a digest; of a schedule that broke as it ran none: new code of the application may run it again."""
    document = json_object(schedule.definition)
    return b"" if schedule.broken and reason_not_run(document) is None else digest(document)
