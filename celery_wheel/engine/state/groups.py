"""Groups: fair shares and limits of tenants. A due row that may not be published yet waits in a line of its group.

::

    a due row             no limit of its group, no depth of its queue ──────────────────► its chunk, as ever
                          room, and nobody waits before it ─── takes a slot ─────────────► its chunk
                          else ─── moves to lane WAITING, into the line of (group, queue)
    release (a job)       takes slots by weighted round-robin over the lines of a queue,
                          and moves their first rows to a lane that publishes ───────────► its chunk
    a slot ends           when a worker reports the end of the run, or max_runtime is over;
                          when the row is cancelled, rejected, expired or moved

A line's rows are in the store only, in the order (priority, due time, acceptance); memory has one number for each line.
A line that can release nothing now is in no ring, so that a round costs what it releases: 100,000 lines whose groups
are full cost nothing. A group without limits whose queue has no depth is not known here at all.

Promises. With c slots, at most c rows of a group are published and not over, in any history with crashes: a new
holder counts the runs of the store and every row that may have been published. With a rate, no time of its length has
more publications than it allows, also over a change of holders: a row spends its part of the rate when it is published,
and keeps its place in the rate until then. No row overtakes an earlier row of its
line, but a row of a higher priority, and one that may be in its queue already; a row that was released as its holder
ended waits anew. A group with twice the weight of another one is released twice as often, while both have rows waiting.

Non-promises: the depth of a queue is read now and then (see ``depths``); between two readings workers may empty it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from celery_wheel.engine.state.depths import Depth, Depths
from celery_wheel.engine.state.gates import EVERYTHING, GROUP, QUEUE, Gates, Meter, Rate
from celery_wheel.store.model import FIRST_TIME, MAX_RUNTIME_MS, RANK_BITS, GroupLimit, LineState, Row

#: The group of rows without one.
NOBODY = ""

#: The rank of a row of the highest AMQP priority is 0, as that of priority 0 is on Redis.
MOST_RANK = 255

#: More rows than a release has.
MOST = 2**31

#: Entries of runs that have ended which are kept in memory, beside as many as there are runs.
SPARE = 1_000

#: Rounds of releases that are remembered, for commands that have read rows before them.
ROUNDS = 64

#: Groups whose ends without a report are counted; the one that is counted for the longest time makes room.
MOST_UNREPORTED = 1_000


@dataclass(frozen=True, slots=True)
class Limit:
    """The limits of a group. Defaults: none."""

    concurrency: int | None = None  #: runs in flight
    rate: Rate | None = None
    weight: int = 1
    max_runtime_ms: int = MAX_RUNTIME_MS

    @property
    def has_none(self) -> bool:
        return self.concurrency is None and self.rate is None

    def under(self, own: GroupLimit | None) -> Limit:
        """Return these limits of a class with a group's own limits over them."""
        if own is None:
            return self
        rate = Rate(own.rate_count, own.rate_per_ms) if own.rate_count and own.rate_per_ms else self.rate
        return Limit(
            self.concurrency if own.concurrency is None else own.concurrency,
            rate,
            own.weight or self.weight,
            own.max_runtime_ms or self.max_runtime_ms,
        )


NO_LIMIT = Limit()


def class_of(group: str) -> str:
    """Return the class of a group: "tenant" of "tenant:42"."""
    return group.partition(":")[0]


@dataclass(slots=True, eq=False)
class Line:
    """The rows of a group that wait for a queue."""

    number: int
    group: Group
    share: SharedQueue
    waiting: int = 0  #: rows in it, as the store has them
    entering: int = 0  #: rows that a commit under way moves into it
    chosen: int = 0  #: rows of it that a release has chosen and not committed yet
    released: int = 0  #: rows that were released and are not published yet
    credit: int = 0  #: rows that it may still release in its turn
    is_listed: bool = False  #: in the ring of its share
    is_rated: bool = False  #: it waits for its group's rate
    since_ms: int = 0  #: monotonic: no row of it was released since then

    def __lt__(self, other: Line) -> bool:
        return False  # in a heap, an ended line may be beside the one that has its number now

    @property
    def left(self) -> int:
        """Rows that no release has chosen."""
        return self.waiting - self.chosen

    @property
    def is_over(self) -> bool:
        return not (self.waiting or self.entering or self.chosen or self.released)


@dataclass(slots=True, eq=False)
class Group:
    name: str
    limit: Limit
    in_flight: int = 0  #: slots that are taken
    waiting: int = 0  #: rows in its lines
    unpublished: int = 0  #: rows with a slot that the broker has not admitted, as far as it is known
    meter: Meter | None = None
    is_idle: bool = False  #: only its meter keeps it
    lines: dict[str, Line] = field(default_factory=dict)  #: by queue

    @property
    def is_used(self) -> bool:
        return bool(self.in_flight or self.unpublished or self.lines)

    def room(self, now_ms: int) -> int | None:
        """Return how many rows may take a slot at a monotonic instant; None: any number."""
        most = None if self.limit.concurrency is None else max(0, self.limit.concurrency - self.in_flight)
        if self.meter is not None:
            free = self.meter.room(now_ms, self.unpublished)
            most = free if most is None else min(most, free)
        return most

    def take(self, count: int) -> None:
        self.in_flight += count
        self.unpublished += count


@dataclass(slots=True, eq=False)
class SharedQueue:
    """A queue for which lines wait, or whose depth is limited."""

    queue: str
    depth: Depth | None = None
    passed_at_ms: int | None = None  #: monotonic: a row passed, or was released
    lines: int = 0  #: that have rows
    open_at_ms: int | None = 0  #: monotonic: its gate lets rows pass; None: when the gate is opened
    on_their_way: int = 0  #: rows that were admitted or chosen, and are not published yet
    ring: deque[Line] = field(default_factory=deque)  #: lines that may release, the next first
    since: int = 0  #: ``arrived`` of the depth when this shard began to read it
    _left: int = 0  #: of its part of the depth's last reading
    _reading: int = 0  #: the number of that reading

    @property
    def room(self) -> int | None:
        """How many rows may go to the queue; None: any number."""
        if self.depth is None:
            return None
        if self._reading != self.depth.readings:
            self._reading, self._left = self.depth.readings, self.depth.part
        return min(self._left, self.depth.room)

    def take(self, most: int) -> int:
        """Put up to so many rows on their way; returns how many."""
        room = self.room
        if self.depth is not None and room is not None:
            most = self.depth.take(min(most, room))
            self._left -= most
        self.on_their_way += most
        return most

    def depth_in_ms(self, now_ms: int) -> int | None:
        """Return in how many milliseconds the depth is to be read; None: nobody needs it."""
        return None if self.depth is None else self.depth.in_ms(now_ms, self.lines > 0)


@dataclass(slots=True, eq=False)
class Slot:
    """A row's place among those of its group that are in flight."""

    group: Group
    share: SharedQueue | None  #: the queue to which it is on its way, if that is shared
    line: Line | None  #: the line that has released it, until it is published
    until_ms: int | None = None  #: due time: the run counts as over; None: not published yet
    is_over: bool = False  #: its end was reported before the broker's answer to its publication came
    is_reported: bool = field(init=False)  #: the row's message asks its worker for a report

    def __post_init__(self) -> None:
        self.look_at_limit()

    def look_at_limit(self) -> None:
        self.is_reported = self.group.limit.concurrency is not None


class Groups:
    """The groups of a shard's state; used under its lock. ``now_ms`` is monotonic where nothing else is said."""

    def __init__(
        self,
        classes: Mapping[str, Limit] | None = None,
        depths: Depths | None = None,
        own: Iterable[GroupLimit] = (),
        *,
        lowest_first: bool = True,
        now_ms: int = 0,
    ) -> None:
        """
        Args:
            classes: limits by the part of a name before its colon.
            depths: by queue; shared by all shards of the process.
            own: limits of single groups.
            lowest_first: whether the broker's workers take priority 0 first.
            now_ms: the present instant, monotonic.
        """
        self._classes = dict(classes or {})
        self._own = {one.group: one for one in own}
        self._lowest_first = lowest_first
        self._depths = depths or {}
        self._groups: dict[str, Group] = {}
        self._shares = {queue: SharedQueue(queue, depth) for queue, depth in self._depths.items()}
        self._by_number: dict[int, Line] = {}
        self._free: list[int] = []
        self._next_number = 0
        self._slots: dict[int, Slot] = {}
        self._ends: list[tuple[int, int]] = []  #: a heap of (until_ms, row id) of published rows
        self._rated: list[tuple[int, int, Line]] = []  #: a heap of (monotonic instant, number, line): out of their rate
        self._idle: list[tuple[int, str]] = []  #: a heap of (monotonic instant, group): its meter is empty
        self._rounds: deque[set[int]] = deque(maxlen=ROUNDS)
        self.releases = 0  #: rounds of releases so far
        self.ended = set[int]()  #: numbers of lines that ended, whose rows of the store may be left
        self.is_stored = False  #: lane WAITING has its row in the store
        self.unreported: dict[str, int] = {}  #: group → slots that ended by max_runtime since its last report
        self.seen_ms = now_ms  #: monotonic: the last pass of ``group_figures``; a line that is newer is seen then

    def __bool__(self) -> bool:
        """Whether any row may have to wait."""
        return bool(self._classes or self._own or self._shares or self._slots)

    # -- limits ------------------------------------------------------------------------------------

    def limit_of(self, group: str) -> Limit:
        return self._classes.get(class_of(group), NO_LIMIT).under(self._own.get(group))

    def set_limit(self, own: GroupLimit) -> None:
        """Give a group limits of its own, which take effect at once: for the rows that take their slots from now on."""
        self._own[own.group] = own
        self._renew(own.group)

    def clear_limit(self, group: str) -> None:
        self._own.pop(group, None)
        self._renew(group)

    def gate_opened(self, name: str) -> None:
        """Note that the gate of a group lets rows pass: its lines may release again."""
        group = self._groups.get(name)
        if group is not None:
            for line in group.lines.values():
                line.is_rated = False  # it would wait for the former rate
                self._list(line)

    def _renew(self, name: str) -> None:
        group = self._groups.get(name)
        if group is not None:
            before, group.limit = group.limit, self.limit_of(name)
            if before.rate != group.limit.rate:
                group.meter = _meter(group.limit)
                for line in group.lines.values():
                    line.is_rated = False  # it would wait for the former rate
            self._list_lines(group)

    def _group(self, name: str) -> Group:
        group = self._groups.get(name)
        if group is None:
            limit = self.limit_of(name)
            group = self._groups[name] = Group(name, limit, meter=_meter(limit))
        return group

    # -- adoption ----------------------------------------------------------------------------------

    def join(self) -> None:
        """Take part in the depths of queues, until ``leave_depths``."""
        for queue, depth in self._depths.items():
            depth.join(self._shares[queue])

    def leave_depths(self) -> None:
        for queue, depth in self._depths.items():
            depth.users.discard(self._shares[queue])

    def adopt(self, lines: Iterable[LineState]) -> None:
        """Take over the lines of the store."""
        for stored in lines:
            if not stored.waiting:
                continue  # the number is used again
            line = self._new_line(self._group(stored.group), stored.queue, stored.number)
            line.waiting = stored.waiting
            line.group.waiting += stored.waiting
            self._next_number = max(self._next_number, stored.number + 1)
            self._list(line)
        self._free = [number for number in range(self._next_number) if number not in self._by_number]

    def adopt_run(self, row_id: int, group: str, until_ms: int | None) -> None:
        """Count a row that a former holder has published; without an end, one that it may have, and that is published
        again before any other."""
        found = self._group(group)
        if row_id not in self._slots:
            found.in_flight += 1
            self._slots[row_id] = Slot(found, None, None, until_ms)
            if until_ms is None:
                found.unpublished += 1
            else:
                heapq.heappush(self._ends, (until_ms, row_id))

    def adopt_rates(self, rates: Mapping[str, int], now_due_ms: int, now_ms: int) -> None:
        """Take over the rates of the store: when each group's may be used anew as a whole, in due time."""
        for name, empty_ms in rates.items():
            if empty_ms > now_due_ms and self.limit_of(name).rate is not None:
                group = self._group(name)
                if group.meter is not None:
                    group.meter.resume(now_ms + empty_ms - now_due_ms, now_ms)
                self._leave(group)

    def adopt_published(self, names: Iterable[str], now_due_ms: int, now_ms: int) -> dict[str, int]:
        """Count rows that a former holder has published, by their groups, each as published now; returns the rates."""
        found = {}
        for name in names:
            if self.limit_of(name).rate is not None:
                group = found[name] = self._group(name)
                if group.meter is not None:
                    group.meter.spend(1, now_ms)
        return _empty_ms(found.values(), now_due_ms, now_ms)

    # -- admission: a row is about to be published -------------------------------------------------

    def admit(self, row: Row, now_ms: int) -> bool:
        """Whether a due row may be published now; it takes a slot, if its group has a limit."""
        if row.id in self._slots:
            return True
        name, queue = row.group or NOBODY, row.route.target
        share, group = self._shares.get(queue), self._groups.get(name)
        if group is not None and queue in group.lines:  # rows before it wait, or are on their way
            return False
        if share is None or share.depth is None:
            if self.limit_of(name).has_none:
                if share is not None:
                    share.passed_at_ms = now_ms
                return True
        elif share.lines or not share.room:
            share.depth.miss()  # so that the depth is read again
            return False
        group = group or self._group(name)
        if group.room(now_ms) == 0 or (share is not None and not share.take(1)):
            return False
        group.take(1)
        if share is not None:
            share.passed_at_ms = now_ms
        self._slots[row.id] = Slot(group, share, None)
        return True

    def reports(self, row: Row) -> bool:
        """Whether a worker has to report the end of the run of an admitted row; later limits do not change that."""
        slot = self._slots.get(row.id)
        if slot is None:
            return False
        slot.look_at_limit()
        return slot.is_reported

    def published(
        self, row_ids: Iterable[int], now_due_ms: int, now_ms: int
    ) -> tuple[dict[int, tuple[str, int]], dict[str, int]]:
        """Note that the broker has admitted rows.

        Returns:
            The rows in flight from now on, row id → (group, until_ms); and group → when its rate is as unused, if it
            has a rate and had a row. Both are in due time.
        """
        runs: dict[int, tuple[str, int]] = {}
        metered: dict[str, Group] = {}
        for row_id in row_ids:
            slot = self._slots.get(row_id)
            if slot is None:
                continue
            group = slot.group
            if slot.share is not None and slot.share.depth is not None:
                slot.share.depth.arrive()
            self._arrived(slot)
            if group.meter is not None:
                group.meter.spend(1, now_ms)
                metered[group.name] = group
            if slot.is_over or not slot.is_reported:
                self._end(row_id, slot)
                continue
            slot.until_ms = now_due_ms + slot.group.limit.max_runtime_ms
            heapq.heappush(self._ends, (slot.until_ms, row_id))
            runs[row_id] = slot.group.name, slot.until_ms
        if len(self._ends) > 2 * len(self._slots) + SPARE:  # runs that ended long before their max_runtime
            self._ends = [(slot.until_ms, id_) for id_, slot in self._slots.items() if slot.until_ms is not None]
            heapq.heapify(self._ends)
        for group in metered.values():
            self._list_lines(group)
        return runs, _empty_ms(metered.values(), now_due_ms, now_ms)

    def _arrived(self, slot: Slot) -> None:
        """An admitted row is published, or will not be."""
        if slot.until_ms is None:
            slot.group.unpublished -= 1
        line, share, slot.line, slot.share = slot.line, slot.share, None, None
        if share is not None:
            share.on_their_way -= 1
        if line is not None:
            line.released -= 1
            self._end_line(line)

    def has_slot(self, row: Row) -> bool:
        return row.id in self._slots

    def is_limited(self, row: Row) -> bool:
        """Whether the row's group has a limit, or its queue a depth."""
        share = self._shares.get(row.route.target)
        if share is not None and share.depth is not None:
            return True
        return row.group is not None and not self.limit_of(row.group).has_none

    def is_in_flight(self, row_id: int) -> bool:
        slot = self._slots.get(row_id)
        return slot is not None and not slot.is_over

    def run_of(self, row_id: int, now_due_ms: int) -> tuple[str | None, int | None] | None:
        """Return the group of a row that has a slot, and until when it is in flight at most; None without a slot.

        A worker may report the end of a run before the broker's answer to its publication is here.
        """
        slot = self._slots.get(row_id)
        if slot is None:
            return None
        return slot.group.name, slot.until_ms or now_due_ms + slot.group.limit.max_runtime_ms

    def over(self, row_id: int) -> None:
        """End the slot of a row whose run is over; nothing without one."""
        slot = self._slots.get(row_id)
        if slot is not None and slot.until_ms is not None:
            self._end(row_id, slot)
        elif slot is not None and not slot.is_over:
            slot.is_over = True
            slot.group.in_flight -= 1
            self._list_lines(slot.group)

    def give_back(self, row_id: int) -> None:
        """End the slot of a row that will not be published; nothing without one."""
        slot = self._slots.get(row_id)
        if slot is not None:
            self._arrived(slot)
            self._end(row_id, slot)

    def _end(self, row_id: int, slot: Slot) -> None:
        del self._slots[row_id]
        if not slot.is_over:
            slot.group.in_flight -= 1
        self._list_lines(slot.group)

    def expire(self, now_due_ms: int) -> list[int]:
        """End the runs that count as over by their max_runtime; returns their row ids."""
        over = []
        while self._ends and self._ends[0][0] <= now_due_ms:
            until_ms, row_id = heapq.heappop(self._ends)
            slot = self._slots.get(row_id)
            if slot is not None and slot.until_ms == until_ms:
                over.append(row_id)
                self.unreported[slot.group.name] = self.unreported.get(slot.group.name, 0) + 1
                self._end(row_id, slot)
        while len(self.unreported) > MOST_UNREPORTED:
            del self.unreported[next(iter(self.unreported))]
        return over

    def reported(self, group: str) -> None:
        """Note that a worker has reported the end of a run, perhaps after its max_runtime."""
        self.unreported.pop(group, None)

    # -- lines -------------------------------------------------------------------------------------

    def stored(self) -> None:
        """Note that lane WAITING has its row in the store."""
        self.is_stored = True

    def line_for(self, row: Row) -> Line:
        """Return the line for a row that has to wait."""
        group, queue = self._group(row.group or NOBODY), row.route.target
        return group.lines.get(queue) or self._new_line(group, queue, self._number())

    def line_of(self, row: Row) -> Line | None:
        """Return the line in which a row waits, as it was read."""
        return None if row.line is None else self._by_number.get(row.line >> RANK_BITS)

    def code(self, line: Line, row: Row, redelivered: bool) -> int:
        """Return the stored ``line`` of a row: the line's number and the row's rank in it."""
        priority = min(row.route.priority or 0, MOST_RANK)
        rank = priority if self._lowest_first else MOST_RANK - priority
        return line.number << RANK_BITS | (0 if redelivered else FIRST_TIME) | rank

    def entered(self, line: Line, count: int) -> None:
        """Note that a commit has moved rows into a line."""
        line.entering -= count
        line.waiting += count
        line.group.waiting += count
        self._list(line)

    def left(self, line: Line, count: int) -> None:
        """Note that a commit has moved rows out of a line."""
        line.waiting -= count
        line.group.waiting -= count
        self._end_line(line)

    def _number(self) -> int:
        if self._free:
            return self._free.pop()
        self._next_number += 1
        return self._next_number - 1

    def _new_line(self, group: Group, queue: str, number: int) -> Line:
        share = self._shares.get(queue)
        if share is None:
            share = self._shares[queue] = SharedQueue(queue)
        share.lines += 1
        line = group.lines[queue] = self._by_number[number] = Line(number, group, share, since_ms=self.seen_ms)
        return line

    def _end_line(self, line: Line) -> None:
        if not line.is_over or line.group.lines.get(line.share.queue) is not line:
            return
        del line.group.lines[line.share.queue], self._by_number[line.number]
        self._free.append(line.number)
        self.ended.add(line.number)
        if line.is_listed:
            line.share.ring.remove(line)
            line.is_listed = False
        line.share.lines -= 1
        if not line.share.lines and line.share.depth is None:
            del self._shares[line.share.queue]
        self._leave(line.group)

    def _leave(self, group: Group) -> None:
        """Forget a group of which nothing is left; one with a rate is remembered until its meter is empty."""
        if group.is_used:
            return
        if group.meter is None:
            self._groups.pop(group.name, None)
        elif not group.is_idle:
            group.is_idle = True
            heapq.heappush(self._idle, (group.meter.empty_ms(), group.name))

    def _list(self, line: Line) -> None:
        """Put a line into its ring, where it may release rows."""
        if not line.is_listed and line.left > 0:
            line.is_listed = True
            line.share.ring.append(line)

    def _list_lines(self, group: Group) -> None:
        """The group has room: its lines may release again."""
        if group.lines:
            for line in group.lines.values():
                self._list(line)
        else:
            self._leave(group)

    # -- release -----------------------------------------------------------------------------------

    def queues_to_read(self, now_ms: int) -> list[str]:
        """Return the queues whose depth is to be read now, by this shard."""
        found = [share for share in self._shares.values() if share.depth_in_ms(now_ms) == 0]
        for share in found:
            if share.depth is not None:
                share.since = share.depth.ask(now_ms)
        return [share.queue for share in found]

    def queues_with_depth(self, rows: Iterable[Row]) -> list[str]:
        """Return those of the queues of rows whose depth is limited."""
        if not self._depths:
            return []
        queues = {row.route.target for row in rows}
        return [queue for queue in self._depths if queue in queues]

    def depths_read(self, depths: Mapping[str, int], now_ms: int, *, at_once: bool = False) -> None:
        """Note how many messages are ready in queues; ``at_once``: as a publication has just left them."""
        for queue, ready in depths.items():
            if (depth := self._depths.get(queue)) is not None:
                depth.read(ready, now_ms, None if at_once else self._shares[queue].since)

    def choose(self, most: int, now_ms: int, gates: Gates) -> list[Line]:
        """Choose up to ``most`` rows to release, by weighted round-robin; returns the line of each, in their order.

        Each has a place in its group from now on, until ``released`` or ``not_released``. A queue or a group that a
        gate stops gets no rows.
        """
        self._pass_time(now_ms)
        chosen: list[Line] = []
        for share in [share for share in self._shares.values() if share.ring]:
            most_here, share.open_at_ms = _passing(share, gates, now_ms)
            before = len(chosen)
            while share.ring and len(chosen) < most and share.room != 0 and len(chosen) - before < most_here:
                line = share.ring[0]
                left = before + most_here - len(chosen)
                count = self._turn(line, min(left, most - len(chosen)), now_ms, gates)
                chosen += [line] * count
                if line.left == 0 or _room(line.group, gates, now_ms) == 0:
                    share.ring.popleft()
                    line.is_listed, line.credit = False, 0
                    self._wait_for_rate(line, now_ms, gates)
                elif line.credit == 0:
                    share.ring.rotate(-1)
            if len(chosen) >= most:  # other queues come first in the next round
                self._shares[share.queue] = self._shares.pop(share.queue)
                break
        return chosen

    def _pass_time(self, now_ms: int) -> None:
        while self._rated and self._rated[0][0] <= now_ms:
            line = heapq.heappop(self._rated)[2]
            line.is_rated = False
            self._list(line)
        while self._idle and self._idle[0][0] <= now_ms:
            group = self._groups.get(heapq.heappop(self._idle)[1])
            if group is not None and group.is_idle:
                group.is_idle = False
                if group.meter is None or group.meter.empty_ms() <= now_ms:
                    if not group.is_used:
                        del self._groups[group.name]
                else:
                    self._leave(group)

    def _turn(self, line: Line, most: int, now_ms: int, gates: Gates) -> int:
        share, room = line.share, _room(line.group, gates, now_ms)
        line.credit = line.credit or line.group.limit.weight
        count = min(line.credit, line.left, most)
        count = share.take(count if room is None else min(count, room))
        if count:
            share.passed_at_ms = line.since_ms = now_ms
        line.credit -= count
        line.chosen += count
        line.group.take(count)
        gates.spend((GROUP, line.group.name), count, now_ms)
        return count

    def _wait_for_rate(self, line: Line, now_ms: int, gates: Gates) -> None:
        """Note when the rates of a group let its line release more, unless it waits for a slot or a resume."""
        group, limit = line.group, line.group.limit.concurrency
        meter, pending = group.meter, group.unpublished
        nexts = [one.next_ms() for one in gates.meters((GROUP, group.name), now_ms)]
        if meter is not None and pending < meter.at_once:
            nexts.append(meter.next_ms(pending))
        elif meter is not None:  # a publication comes first
            return
        if line.is_rated or not line.left or not nexts or group.name in gates.closed_groups:
            return
        if limit is None or group.in_flight < limit:
            line.is_rated = True
            heapq.heappush(self._rated, (max(now_ms + 1, *nexts), line.number, line))

    def released(self, rows: Sequence[tuple[Row, Line]]) -> None:
        """Give the places of chosen rows to rows that are about to move to a lane that publishes."""
        for row, line in rows:
            line.chosen -= 1
            line.released += 1
            self._slots[row.id] = Slot(line.group, line.share, line)

    def moved(self, row_ids: set[int]) -> None:
        """Note that a commit has moved released rows to lanes that publish."""
        self.releases += 1
        self._rounds.append(row_ids)

    def not_released(self, lines: Iterable[Line]) -> None:
        """Give back the places of chosen rows that the store did not have."""
        for line in lines:
            line.chosen -= 1
            line.share.on_their_way -= 1
            line.group.in_flight -= 1
            line.group.unpublished -= 1
            self._list_lines(line.group)
            self._end_line(line)

    def may_be_released(self, row_id: int, since: int) -> bool:
        """Whether a row that was read in a line may have left it since ``releases`` had the value ``since``."""
        count = self.releases - since
        return count > len(self._rounds) or any(row_id in one for one in list(self._rounds)[-count:] if count)

    def next_ms(self, now_ms: int, now_due_ms: int) -> int | None:
        """Return in how many milliseconds a release may have more to do; None: not before something happens."""
        waits = [self._ends[0][0] - now_due_ms] if self._ends else []
        if self._rated:
            waits.append(self._rated[0][0] - now_ms)
        for share in self._shares.values():
            if share.ring and share.room != 0 and share.open_at_ms is not None:
                waits.append(max(0, share.open_at_ms - now_ms))
            if (depth_in_ms := share.depth_in_ms(now_ms)) is not None:
                waits.append(depth_in_ms)
        return max(0, min(waits)) if waits else None

    # -- for people: without the lock, as far as these copies go -------------------------------------

    def lines(self) -> list[Line]:
        return list(self._by_number.values())

    def groups(self) -> list[Group]:
        return list(self._groups.values())

    def waiting(self, name: str) -> int:
        """Return how many rows of a group wait."""
        group = self._groups.get(name)
        return 0 if group is None else group.waiting


def _meter(limit: Limit) -> Meter | None:
    return None if limit.rate is None else Meter(limit.rate, 0, exact=True)


def _empty_ms(groups: Iterable[Group], now_due_ms: int, now_ms: int) -> dict[str, int]:
    """Return in due time when the meter of each group is empty."""
    return {one.name: now_due_ms + one.meter.empty_ms() - now_ms for one in groups if one.meter is not None}


def _room(group: Group, gates: Gates, now_ms: int) -> int | None:
    """Return how many rows of a group may take a slot and pass its gate; None: any number."""
    if group.name in gates.closed_groups:
        return 0
    most, (free, _) = group.room(now_ms), gates.room((GROUP, group.name), now_ms)
    return free if most is None else most if free is None else min(most, free)


def _passing(share: SharedQueue, gates: Gates, now_ms: int) -> tuple[int, int | None]:
    """Return how many rows may pass the gates of a queue now, and if none, when they may; None: at an opening."""
    place = QUEUE, share.queue
    if place in gates.closed or EVERYTHING in gates.closed:
        return 0, None
    most = MOST
    for one in (place, EVERYTHING):
        room, retry_at_ms = gates.room(one, now_ms)
        if room == 0:
            return 0, retry_at_ms
        most = most if room is None else min(most, max(0, room - share.on_their_way))
    return most, now_ms
