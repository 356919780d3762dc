"""A follower: makes the store's schedules of one source equal to the source's entries.

::

    changes of the source ─┐                ┌ in the store only     delete
                           ├─► difference ──┤ digests differ        update, with the anchor of the stored interval
    name → digest, once    │                └ in the source only    create, after the last instant that was sent
    read from the store  ──┘
                                    refused     the entry becomes broken, with the reason
                                    already     the name is taken by another source: a clash, tried again later

Deletions are sent first, so an entry that is renamed never runs twice. Memory has a digest of each definition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from celery_wheel.broker.names import shard_of
from celery_wheel.recurring.definition import reason_not_run
from celery_wheel.requests.results import ScheduleAnswer
from celery_wheel.scheduler.sources.entry import (
    Document,
    EntryChanges,
    SourceEntry,
    broken,
    digest,
    is_of_base,
    with_anchor_of,
)
from celery_wheel.store.ports import FullStore
from celery_wheel.store.schedule_model import Schedule, ScheduleCriteria
from celery_wheel.values.document import json_object

logger = logging.getLogger(__name__)

#: Sends a change of schedules: its kind, the names or definitions, and the other fields of the command.
Ask = Callable[[str, Sequence[str] | Mapping[str, Document], dict[str, Any]], Mapping[str, ScheduleAnswer]]

#: Names in one request.
AT_ONCE = 1_000


class Follower:
    def __init__(
        self, source: str, store: Callable[[], FullStore], ask: Ask, now_ms: Callable[[], int], hands_back: bool
    ) -> None:
        self.source = source
        self._store = store
        self._ask = ask
        self._now_ms = now_ms
        self._hands_back = hands_back
        self._stored: dict[str, bytes] | None = None  #: name → digest; None: not read yet
        self.clashes: dict[str, SourceEntry] = {}  #: entries whose names are taken
        self.handed_back: dict[str, int] = {}  #: name → last instant, of entries that the base scheduler runs from now

    def forget(self) -> None:
        """Read the store again at the next call, since a request has failed."""
        self._stored = None

    def follow(self, changes: EntryChanges) -> None:
        """Carry out the difference. Raises WheelUnavailable or StoreError; then call ``forget``."""
        stored = self._stored if self._stored is not None else self._read()
        gone = [name for name in stored if name not in changes.entries] if changes.is_whole else changes.gone
        new = {name: one for name, one in changes.entries.items() if name not in stored}
        changed = {name: one for name, one in changes.entries.items() if stored.get(name, b"") != digest(one.document)}
        for name in [*gone, *changed]:
            self.clashes.pop(name, None)
        if changes.is_whole:
            self.clashes.clear()
        self._delete(stored, [name for name in gone if name in stored])
        self._update(stored, {name: one for name, one in changed.items() if name not in new})
        self._create(stored, new)
        self._stored = stored

    def retry_clashes(self) -> None:
        """Create the entries whose names were taken, where they are free by now."""
        if self._stored is not None and self.clashes:
            self._create(self._stored, dict(self.clashes))

    def _read(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        after: str | None = ""
        while after is not None:
            page = self._store().browse.schedules(ScheduleCriteria(source=self.source), after, AT_ONCE)
            found |= {one.name: _digest_of(one) for one in page.items}
            after = page.next
        return found

    def _delete(self, stored: dict[str, bytes], names: list[str]) -> None:
        for part in _parts(names):
            before = self._named(part) if self._hands_back else {}
            answers = self._ask("delete", part, {})
            for name in part:
                stored.pop(name, None)
                self._hand_back(before.get(name), answers[name])

    def _update(self, stored: dict[str, bytes], entries: dict[str, SourceEntry]) -> None:
        for part in _parts(list(entries)):
            found = self._named(part)
            before = {name: one for name, one in found.items() if one.source == self.source}
            self._create(stored, {name: entries[name] for name in part if name not in before})
            documents = {
                name: with_anchor_of(entries[name].document, json_object(one.definition))
                for name, one in before.items()
            }
            if not documents:
                continue
            answers = self._ask("update", documents, _after_ms(entries, list(documents)))
            for name, answer in answers.items():
                if answer.result == "refused":
                    self._refuse("update", stored, name, entries[name], answer)
                    continue
                stored[name] = digest(entries[name].document)
                if is_of_base(entries[name]):
                    self._hand_back(before[name], answer)

    def _create(self, stored: dict[str, bytes], entries: dict[str, SourceEntry]) -> None:
        for part in _parts(list(entries)):
            documents = {name: entries[name].document for name in part}
            answers = self._ask("create", documents, _after_ms(entries, part))
            taken = self._named([name for name in part if answers[name].result == "already"])
            for name in part:
                if name in taken and taken[name].source != self.source:
                    self._clash(name, entries[name], taken[name])
                elif answers[name].result == "refused":
                    self._refuse("create", stored, name, entries[name], answers[name])
                else:
                    self.clashes.pop(name, None)
                    own = taken.get(name)
                    stored[name] = digest(entries[name].document) if own is None else _digest_of(own)

    def _refuse(self, do: str, stored: dict[str, bytes], name: str, entry: SourceEntry, answer: ScheduleAnswer) -> None:
        """Store the entry as broken, once; a name that no store can hold is in the log alone."""
        logger.error(
            "%s: the entry %r does not run: %s; correct the entry",
            self.source,
            name,
            answer.reason,
            extra={"action": "entry_refused", "source": self.source, "schedule": name},
        )
        instead = broken(entry.document["task"], answer.reason)
        answers = self._ask(do, {name: instead.document}, {})
        if answers[name].result != "refused":
            # The digest of the entry itself: it is not sent again before it changes.
            stored[name] = digest(entry.document)

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
        last_ms = max([min(before.last_ms, self._now_ms()), *(int(at.timestamp() * 1_000) for at in answer.too_late)])
        self.handed_back[before.name] = last_ms

    def _named(self, names: Sequence[str]) -> dict[str, Schedule]:
        store = self._store()
        by_shard: dict[int, list[str]] = {}
        for name in names:
            by_shard.setdefault(shard_of(None, name, store.shards), []).append(name)
        return {one.name: one for shard, part in by_shard.items() for one in store.schedules_named(shard, part)}


def _after_ms(entries: Mapping[str, SourceEntry], names: Sequence[str]) -> dict[str, Any]:
    """Return the option of a command after which instants schedules begin that have made none yet."""
    return {"after_ms": {name: at_ms for name in names if (at_ms := entries[name].after_ms) is not None}}


def _parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[start : start + AT_ONCE] for start in range(0, len(names), AT_ONCE))


def _digest_of(schedule: Schedule) -> bytes:
    """Return a digest; of a schedule that broke as it ran none: new code of the application may run it again."""
    document = json_object(schedule.definition)
    return b"" if schedule.broken and reason_not_run(document) is None else digest(document)
