"""The oracle of backfills: the policy of a request says which of its instants run, and when.

::

    answered   of the instants that the schedule had decided on: all (allow, queue_all); the first, or none where a
               run was going on (skip); the first and the last, or only the last (queue_one); the last, and no run
               goes on (cancel_running). The answer counts the others; runs of an "allow" schedule do not go on
    pushed     a queued instant: the run before it is over, for the first one all that were going on
    ended      the end of a run makes the queued instant after it due, whatever else waits

A run whose row was made, pushed, ended, moved or forgotten in the same moment may count as going on or not.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from celery_wheel.engine.recurring.occurrence import is_reported, read_header, run_before
from celery_wheel.store.model import STOPPED, Row
from celery_wheel.store.schedule_model import Run
from tests.simulation.model_history import ShardData
from tests.simulation.policies import Policy

LEFT_OUT = re.compile(r"the overlap policy of the backfill leaves out (\d+) of (\d+) instants")
#: A row that is due so soon may be on its way to the broker, and is not made due sooner.
NEARLY_DUE_MS = 50


class Backfills:
    def __init__(
        self, counts: Counter[str], pushed_ms: Mapping[int, int], violation: Callable[[str], Exception]
    ) -> None:
        self.counts = counts
        self._pushed_ms = pushed_ms
        self._violation = violation
        self._waits_for: dict[str, list[Run]] = {}  #: task id of a first queued instant → runs that were going on

    def answered(
        self,
        data: ShardData,
        policy: Policy,
        overlap: str | None,
        wanted: Sequence[int],
        result: Mapping[str, Any],
        runs: Sequence[Run],
        at_ms: int,
    ) -> int:
        """Judge what a backfill made of its ``wanted`` instants; returns how many the schedule had decided on."""
        made = [int(task_id.split()[1]) for task_id in result["task_ids"]]
        found = LEFT_OUT.match(result.get("reason", ""))
        left_out, count = (int(found[1]), int(found[2])) if found else (0, len(made))
        if left_out != count - len(made):
            raise self._violation(f"a backfill made {made}, and says: {result['reason']}")
        overlap, decided = overlap or policy.overlap, wanted[:count]
        is_told = policy.is_guarded and overlap != "allow"
        going_on = [one for one in runs if is_told and self._goes_on(data, one, policy, at_ms)]
        may_go_on = [one for one in runs if is_told and self._may_go_on(data, one, policy, at_ms)]
        right = [_kept(decided, overlap, True)] if may_go_on else []
        right += [] if going_on else [_kept(decided, overlap, False)]
        if len(decided) < count or made not in right:
            raise self._violation(f"the backfill {overlap!r} of {wanted} made {made}, and {right} are right")
        self.counts[f"backfills, {overlap}"] += 1
        if going_on and overlap == "cancel_running" and made:
            raise self._violation(f"the runs {[one.timer_id for one in going_on]} go on beside a backfill")
        if made and overlap in ("queue_one", "queue_all"):
            reporting = [one for one in going_on if is_reported(data.rows[one.timer_id].row)]
            self._waits_for[result["task_ids"][0]] = reporting
        return count

    @staticmethod
    def _goes_on(data: ShardData, run: Run, policy: Policy, at_ms: int) -> bool:
        if run.timer_id not in data.rows:
            return False
        row = data.rows[run.timer_id].row
        return (
            run.ended_ms is None
            and data.rows[run.timer_id].accepted_ms < at_ms
            and row.lane != STOPPED
            and row.due_ms + policy.max_runtime_ms > at_ms
            and run.timer_id not in moved_by_users(data)
        )

    def _may_go_on(self, data: ShardData, run: Run, policy: Policy, at_ms: int) -> bool:
        row = (data.rows.get(run.timer_id) or data.forgotten[run.timer_id]).row
        if run.ended_ms is not None:
            return run.ended_ms >= at_ms
        pushed_ms, lane = self._pushed_ms.get(run.timer_id), data.lanes.get(row.lane)
        was_pushed = pushed_ms is not None and pushed_ms < at_ms
        is_known = lane is None or row.position <= lane.offset  # also to a scheduler that took the shard over
        return not (was_pushed and is_known) or row.due_ms + policy.max_runtime_ms > at_ms

    def pushed(self, data: ShardData, run: Run, row: Row, task_id: str, now_ms: int, latest: Collection[int]) -> None:
        """Judge a queued instant, which is pushed; ``latest`` are the latest runs of the schedule."""
        queued, moved = read_header(row).get("queued"), moved_by_users(data)
        if queued is None or row.id in moved:
            return
        self.counts["queued instants"] += 1
        if run_before(row) is None:
            waits_for = [one for one in self._waits_for.get(task_id, ()) if one.timer_id in latest]
            self.counts["queued instants behind runs of the schedule"] += bool(waits_for)
        else:
            waits_for = [_before(data, run)]
        for one in waits_for:
            stored = data.rows.get(one.timer_id)
            if data.runs[one.timer_id].ended_ms is not None:
                self.counts["queued instants after the end of a run"] += 1
            elif stored is None or stored.row.lane == STOPPED or one.timer_id in moved:
                continue
            elif stored.row.due_ms + queued["max_runtime_ms"] > now_ms:
                raise self._violation(f"queued row {row.id} was pushed while run {one.timer_id} was not over")

    def ended(self, data: ShardData, run: Run, now_ms: int) -> None:
        """Judge the end of a run, which is stored: the queued instant after it waits no longer."""
        if run.timer_id not in data.rows or not run.requested:
            return  # its row is forgotten, so nothing tells; or no queued instant is after it
        queued = [one for one in data.runs.values() if _is_queued(data, one, run.schedule)]
        later = [one for one in queued if one.timer_id > run.timer_id and _before(data, one) is run]
        for row in (data.rows[one.timer_id].row for one in later):
            waits = run_before(row) is not None and row.lane != STOPPED and row.due_ms > now_ms + NEARLY_DUE_MS
            # One that has ended itself was replaced by a later run: it is about to be cancelled.
            if waits and row.id not in moved_by_users(data) and data.runs[row.id].ended_ms is None:
                raise self._violation(f"queued row {row.id} still waits for run {run.timer_id}, which has ended")


def _kept(instants: Sequence[int], overlap: str, is_running: bool) -> list[int]:
    first, last = list(instants[:1]), list(instants[-1:])
    return {
        "skip": [] if is_running else first,
        "queue_one": last if is_running or first == last else first + last,
        "cancel_running": last,
    }.get(overlap, list(instants))


def _before(data: ShardData, run: Run) -> Run:
    """Return the run before a queued one: it was made with it, just before."""
    own = [one for one in data.runs.values() if one.requested and one.schedule == run.schedule]
    return max((one for one in own if one.timer_id < run.timer_id), key=lambda one: one.timer_id)


def _is_queued(data: ShardData, run: Run, schedule: int | None) -> bool:
    stored = data.rows.get(run.timer_id)
    return run.schedule == schedule and run.requested and stored is not None and "queued" in read_header(stored.row)


def moved_by_users(data: ShardData) -> set[int]:
    every = (*data.outcomes, *data.forgotten_outcomes)
    return {one.timer_id for one in every if one.kind == "moved" and one.actor != "wheel"}
