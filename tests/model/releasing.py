"""The release of a group with a limit of concurrency: due, line, slot, in flight, report, takeover.

::

    due ─► wait ─► release ─► take ─► publish ─► settle          memory: slots     store: place of each row, open runs
      └───────────────────────┘          └─► finish ─► end       a worker: finish, and its report in the wheel queue

A new holder counts the open runs of the store and the rows that were published and not settled. The promises: the
rows in flight (published, not finished, max_runtime not over) are never more than the limit; a row that waits is not
overtaken by a later row of its line; every row is published in the end, also where workers are killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.model.checker import Event, Model, require

Rows = frozenset[int]
NONE: Rows = frozenset()


@dataclass(frozen=True, slots=True)
class State:
    waiting: Rows = NONE  #: in lane WAITING of the store
    free: Rows = NONE  #: due or released: in a lane that publishes
    slots: Rows = NONE  #: in the memory of the holder
    taken: Rows = NONE  #: in a chunk of the holder
    pushed: Rows = NONE
    settled: Rows = NONE  #: with a run in the store, open or ended
    finished: Rows = NONE  #: the run is over
    reported: Rows = NONE  #: a report of the end is in the wheel queue
    ended: Rows = NONE  #: the end is in the store
    over: Rows = NONE  #: max_runtime is over
    overtaken: bool = False  #: a row has passed an earlier one of its line


class Releasing(Model):
    def __init__(self, rows: int = 3, limit: int = 1) -> None:
        self.rows, self.limit = range(1, rows + 1), limit

    def initial(self) -> State:
        return State()

    # -- the store and the holder ----------------------------------------------------------------

    def come(self, state: State, row: int) -> State:
        require(row not in state.free | state.waiting | state.pushed, "the row is there")
        return replace(state, free=state.free | {row})

    def wait(self, state: State, row: int) -> State:
        """Move a due row to the line: there is no room, or rows wait before it."""
        require(row in state.free - state.taken - state.pushed, "the row is not due")
        return replace(state, free=state.free - {row}, waiting=state.waiting | {row}, slots=state.slots - {row})

    def release(self, state: State, row: int) -> State:
        self.check_room(state, row)
        require(row in state.waiting, "the row does not wait")
        self.check_first(state, row)
        free, waiting = state.free | {row}, state.waiting - {row}
        overtaken = state.overtaken or row > min(state.waiting)
        return replace(state, free=free, waiting=waiting, slots=state.slots | {row}, overtaken=overtaken)

    def check_room(self, state: State, row: int) -> None:
        require(row in state.slots or len(state.slots) < self.limit, "the group has no room")

    def check_first(self, state: State, row: int) -> None:
        require(row == min(state.waiting), "an earlier row waits")

    def take(self, state: State, row: int) -> State:
        require(row in state.free - state.taken - state.pushed, "the row is not due")
        if row not in state.slots:
            self.check_line(state, row)
            self.check_room(state, row)
        overtaken = state.overtaken or (row not in state.slots and any(one < row for one in state.waiting))
        return replace(state, taken=state.taken | {row}, slots=state.slots | {row}, overtaken=overtaken)

    def check_line(self, state: State, row: int) -> None:
        require(not any(one < row for one in state.waiting), "rows wait before it")

    def publish(self, state: State, row: int) -> State:
        require(row in state.taken - state.pushed, "the row was not taken")
        return replace(state, pushed=state.pushed | {row})

    def leave(self, state: State, row: int) -> State:
        """The row gets an outcome, or another eta: its slot is free."""
        require(row not in state.pushed, "the row was published")
        free, waiting, taken = state.free - {row}, state.waiting - {row}, state.taken - {row}
        return replace(state, free=free, waiting=waiting, taken=taken, slots=state.slots - {row})

    def settle(self, state: State, row: int, has_run: bool = True) -> State:
        """Commit what was published, with its run."""
        require(row in state.pushed - state.settled, "nothing to settle")
        require(has_run or row in state.ended | state.over, "its run is not stored")
        return self.store_run(replace(state, free=state.free - {row}, taken=state.taken - {row}), row)

    def store_run(self, state: State, row: int) -> State:
        return replace(state, settled=state.settled | {row})

    def end(self, state: State, row: int) -> State:
        """Commit the report of a worker, and trim it; the slot is free."""
        require(row in state.reported, "nothing was reported")
        ended = state.ended | {row} if self.keeps_end(state, row) else state.ended
        return replace(state, reported=state.reported - {row}, ended=ended, slots=state.slots - {row})

    def keeps_end(self, state: State, row: int) -> bool:
        """The end is stored also where the settlement with the run comes later."""
        return True

    def expire(self, state: State, row: int) -> State:
        require(row in state.over, "max_runtime is not over")
        return replace(state, slots=state.slots - {row})

    def crash(self, state: State) -> State:
        """A holder ends; the next one settles what the broker has, and counts (see ``lease``)."""
        after = replace(state, taken=NONE, free=state.free - state.pushed)
        for row in state.pushed - state.settled:
            after = self.store_run(after, row)
        return replace(after, slots=self.counted(state))

    def counted(self, state: State) -> Rows:
        return self.open_runs(state) | self.unsettled(state)

    def open_runs(self, state: State) -> Rows:
        return state.settled - state.ended - state.over

    def unsettled(self, state: State) -> Rows:
        return state.pushed - state.settled - state.ended - state.over

    # -- the workers -----------------------------------------------------------------------------

    def finish(self, state: State, row: int, reports: bool) -> State:
        require(row in state.pushed - state.finished, "it does not run")
        reported = state.reported | {row} if reports else state.reported
        return replace(state, finished=state.finished | {row}, reported=reported)

    def time_out(self, state: State, row: int) -> State:
        require(row in state.pushed - state.over, "it was not published")
        return replace(state, over=state.over | {row})

    # -- bounds and promises ---------------------------------------------------------------------

    def events(self, state: State) -> Iterator[Event]:
        yield ("crash",)
        for row in self.rows:
            yield from ((what, row) for what in ("wait", "release", "take", "publish", "settle", "end", "expire"))
            yield from (("come", row), ("time_out", row), ("finish", row, True), ("finish", row, False))

    def is_done(self, state: State) -> bool:
        return len(state.settled) == len(self.rows) and not state.slots

    def broken(self, state: State) -> str | None:
        flying = state.pushed - state.finished - state.over
        if len(flying) > self.limit:
            return f"rows {sorted(flying)} are in flight, and the limit is {self.limit}"
        return "a row has overtaken a row that waits" if state.overtaken else None
