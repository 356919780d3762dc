"""The thread that follows the sources, and the follower that makes the store's schedules equal to a source's entries.

::

    changes of the source ─┐                ┌ in the store only     delete
                           ├─► difference ──┤ digests differ        update, with the anchor of the stored interval
    name → digest, once    │                └ in the source only    create, after the last instant that was sent
    read from the store  ──┘
                                    refused     the entry becomes broken, with the reason
                                    already     the name is taken by another source: a clash, tried again later

Deletions are sent first, so an entry that is renamed never runs twice. Memory has a digest of each definition. A
failure is logged once until it is over; the source and the store are read anew, with back-off. ``stop`` ends a wait for
an answer: the request is withdrawn, and the next holder computes the difference anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from celery_wheel.broker import shard_of
from celery_wheel.conf import Conf
from celery_wheel.errors import StoreError, WheelUnavailable
from celery_wheel.recurring.definition import reason_not_run
from celery_wheel.requests.answers import ProcessStore
from celery_wheel.requests.asynchronous import Interruption
from celery_wheel.requests.request import Names, Request
from celery_wheel.requests.results import ScheduleAnswer
from celery_wheel.scheduler.sources import (
    Document,
    EntryChanges,
    EntrySource,
    SourceEntry,
    broken,
    digest,
    is_of_base,
    with_anchor_of,
)
from celery_wheel.store.audit_model import SOURCE
from celery_wheel.store.ports import FullStore
from celery_wheel.store.schedule_model import SCHEDULE, Schedule, ScheduleCriteria
from celery_wheel.timing import Backoff, SystemClock
from celery_wheel.values import json_object, parts
from celery_wheel.values.log import get_logger

if TYPE_CHECKING:
    from celery_wheel.scheduler.sources.django_source import RunCounts

logger = get_logger(__name__)

#: Sends a change of schedules: its kind, the names or definitions, and the other fields of the command.
Ask = Callable[[str, Sequence[str] | Mapping[str, Document], dict[str, Any]], Mapping[str, ScheduleAnswer]]

#: Names in one request.
AT_ONCE = 1_000

#: Seconds between two looks at the sources; an edit is live within four of them.
POLL_S = 0.25

#: Seconds for an answer: after a takeover the holders of all shards answer within three.
ANSWER_S = 10.0
BACK_OFF_MOST_S = 30.0


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
        for part in parts(names, AT_ONCE):
            before = schedules_named(self._store(), part) if self._hands_back else {}
            answers = self._ask("delete", part, {})
            for name in part:
                stored.pop(name, None)
                self._hand_back(before.get(name), answers[name])

    def _update(self, stored: dict[str, bytes], entries: dict[str, SourceEntry]) -> None:
        for part in parts(list(entries), AT_ONCE):
            found = schedules_named(self._store(), part)
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
        for part in parts(list(entries), AT_ONCE):
            documents = {name: entries[name].document for name in part}
            answers = self._ask("create", documents, _after_ms(entries, part))
            taken = schedules_named(self._store(), [name for name in part if answers[name].result == "already"])
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


def schedules_named(store: FullStore, names: Sequence[str]) -> dict[str, Schedule]:
    """Return the store's schedules with these names, of all sources."""
    return {one.name: one for _, one in store.schedules_named(names)}


def _after_ms(entries: Mapping[str, SourceEntry], names: Sequence[str]) -> dict[str, Any]:
    """Return the option of a command after which instants schedules begin that have made none yet."""
    return {"after_ms": {name: at_ms for name in names if (at_ms := entries[name].after_ms) is not None}}


def _digest_of(schedule: Schedule) -> bytes:
    """Return a digest; of a schedule that broke as it ran none: new code of the application may run it again."""
    document = json_object(schedule.definition)
    return b"" if schedule.broken and reason_not_run(document) is None else digest(document)


class Sources:
    """Started once, stopped once.

    ``hands_back`` names the sources whose entries may go back to the base scheduler. ``counts`` runs after the sources.
    ``report`` is called with the sources' part of the status, whenever it has changed.
    """

    def __init__(
        self,
        conf: Conf,
        sources: Sequence[EntrySource],
        held: Callable[[], bool],
        *,
        hands_back: Sequence[str] = (),
        counts: RunCounts | None = None,
        report: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        self._process_store = ProcessStore(conf)
        self._held = held
        self._counts = counts
        self._report = report
        self._clock = SystemClock()
        self._sources = {
            one: Follower(one.name, self._store, self._asker(one.name), self._clock.now_ms, one.name in hands_back)
            for one in sources
        }
        self._failing: set[str] = set()
        self._stop = threading.Event()
        self._interruption = Interruption()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wheel-sources", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    @property
    def settled(self) -> bool:
        """Whether the listed entries of every source are in the store."""
        return all(one.is_followed for one in self._sources)

    def take_back(self, put: Callable[[str, int], None]) -> bool:
        """Put name and last instant of the entries that the base scheduler runs from now on; returns whether any."""
        found = False
        for follower in self._sources.values():
            for name, last_ms in list(follower.handed_back.items()):
                put(name, last_ms)
                follower.handed_back.pop(name, None)  # only now: a signal's handler that comes between puts it again
                found = True
        return found

    def stop(self, timeout_s: float = 5.0) -> None:
        self._stop.set()
        self._wake.set()
        self._interruption.interrupt()  # the wait for an answer
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        self._process_store.close()

    # -- the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff, clashes_at_s = Backoff(1.0, BACK_OFF_MOST_S), 0.0
        self._interruption.enter()
        while not self._stop.is_set():
            self._wake.clear()
            wait_s = POLL_S
            if self._held() and not self.look():
                wait_s = backoff.failed()
            else:
                backoff.succeeded()
            now_s = self._clock.monotonic_ms() / 1_000
            if now_s - clashes_at_s > 60.0:
                clashes_at_s = now_s
                self._guarded("clashes", self._retry_clashes)
            self._wake.wait(wait_s)
        if self._counts is not None:
            self._counts.close()
        self._process_store.close()  # a thread that was hung at the stop has opened it again

    def look(self) -> bool:
        """Look at each source once; returns whether all could be read and followed."""
        well = True
        for source, follower in self._sources.items():
            if not self._guarded(source.name, lambda s=source, f=follower: self._follow(s, f)):  # type: ignore[misc]
                source.reset()
                follower.forget()
                well = False
        counts = self._counts
        if counts is not None:
            well &= self._guarded("run counts", lambda: counts.run(self._store()))
        return well

    def _follow(self, source: EntrySource, follower: Follower) -> None:
        changes = source.read()
        if changes is None:
            return
        follower.follow(changes)
        source.followed()
        self._tell()

    def _retry_clashes(self) -> None:
        for follower in self._sources.values():
            follower.retry_clashes()
        self._tell()

    def _tell(self) -> None:
        self._report({one.name: {"clashes": sorted(follower.clashes)} for one, follower in self._sources.items()})

    def _guarded(self, what: str, work: Callable[[], None]) -> bool:
        """Do the work; returns False where it failed, and says so once until it is done again."""
        try:
            work()
        except Exception as error:  # also of the application's database: every source is tried again
            if what not in self._failing and not self._stop.is_set():
                known = isinstance(error, WheelUnavailable | StoreError)
                logger.warning(
                    "periodic entries (%s) cannot be followed: %s; they run as they were, and this is tried again",
                    what,
                    error,
                    exc_info=None if known else error,
                    extra={"action": "source_failed", "source": what},
                )
            self._failing.add(what)
            return False
        self._failing.discard(what)
        return True

    # -- requests --------------------------------------------------------------------------------------

    def _store(self) -> FullStore:
        return self._process_store.open().store

    def _asker(self, source: str) -> Callable[[str, Names, dict[str, Any]], dict[str, ScheduleAnswer]]:
        def ask(do: str, names: Names, options: dict[str, Any]) -> dict[str, ScheduleAnswer]:
            if self._stop.is_set() or not self._held():
                raise WheelUnavailable("this process no longer holds shard 0", {})
            own = {"do": do, "source": source, "actor": source, "reason": f"followed from {source}", **options}
            audit = {"origin": SOURCE}
            request = Request(self._process_store.open, SCHEDULE, names, own, ANSWER_S, shard_of=shard_of, audit=audit)
            request.send()
            return request.receive()

        return ask
