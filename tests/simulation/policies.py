"""Schedules as an oracle sees them: a life has phases, each with a policy, which allows each decision of the engine.

::

    a row       was decided on between two instants that the renderer has noted
                    not before the look-ahead          in the main lane; later ones are a herd, in a lane of their own
                    guarded                            the latest instant, and not before its time
                    so late that it was missed         only as its catch-up says
                    jitter                             within its bound, one a name or one a run
    a skip      missed (late, and catch-up left it out), overlapped (an earlier run was not over, or a later instant was
                due as well) or paused (a pause began or ended then)

Instants are multiples of an interval. A decision near a change of the schedule may be of either definition.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_wheel.engine.round import Limits
from celery_wheel.store.model import STOPPED, Message, Row
from celery_wheel.store.schedule_model import MISSED, OVERLAPPED, PAUSED, Run, Skip
from tests.simulation.model_history import ShardData, StoredRow


@dataclass(frozen=True, slots=True)
class Policy:
    every_ms: int
    overlap: str
    max_runtime_ms: int
    jitter_ms: int
    catch_up: str
    catch_up_ms: int  #: of "all"

    @property
    def is_guarded(self) -> bool:
        return self.overlap != "allow"

    @property
    def jitter_by(self) -> str:
        return ("run", "name")[self.every_ms % 2]

    def instants(self, from_ms: int, upto_ms: int) -> list[int]:
        return list(range(-(-from_ms // self.every_ms) * self.every_ms, upto_ms + 1, self.every_ms))

    def document(self) -> dict[str, Any]:
        spec = {"kind": "interval", "every_ms": self.every_ms}
        document = {"recurrence": {"kind": "recurrence", "spec": spec}, "task": "tasks.recurring"}
        document |= {"catch_up": self.catch_up, "overlap": self.overlap, "max_runtime_ms": self.max_runtime_ms}
        document |= {"catch_up_ms": self.catch_up_ms} if self.catch_up == "all" else {}
        return document | {"jitter_ms": self.jitter_ms, "jitter_by": self.jitter_by}


@dataclass(slots=True)
class Phase:
    from_ms: int
    policy: Policy
    paused: bool = False
    upto_ms: int | None = None

    def instants(self) -> list[int]:
        assert self.upto_ms is not None
        return self.policy.instants(self.from_ms + 1, self.upto_ms)


@dataclass(slots=True)
class Life:
    """One schedule, from its creation to its deletion. It has a number in each store that it has moved to."""

    ids: list[int]
    phases: list[Phase] = field(default_factory=list)
    deleted: bool = False
    too_late: set[int] = field(default_factory=set)
    #: Instants whose rows were pending when the schedule moved, and the number of its phases by then: no later change
    #: withdraws these rows.
    carried: dict[int, int] = field(default_factory=dict)
    #: Instants that a backfill made, and the largest run before it.
    backfilled: dict[int, int] = field(default_factory=dict)

    @property
    def policies(self) -> list[Policy]:
        return [one.policy for one in self.phases]

    def in_force(self, from_ms: int, upto_ms: int) -> Phase | None:
        """Return the only phase of a time; None where a change lies in it."""
        begun = [one for one in self.phases if one.from_ms <= upto_ms]
        found = [one for one in begun if one.upto_ms is None or one.upto_ms >= from_ms]
        return found[0] if len(found) == 1 else None

    def is_of_former_definition(self, instant_ms: int) -> bool:
        """Whether a change since the move may have made the instant of a carried row another time."""
        return instant_ms in self.carried and len(self.phases) > self.carried[instant_ms]


NEVER = 2**62
#: So many rows of a schedule have not all the same jitter of up to 40 ms by chance.
ENOUGH = 8


class Policies:
    def __init__(
        self,
        limits: Limits,
        decided: Mapping[str, tuple[int, int]],
        clock_steps: bool,
        violation: Callable[[str], Exception],
    ) -> None:
        self.clock_steps = clock_steps  #: due time is not the time of the world then, and no decision is judged
        #: Rows whose publish Redis lost: such a run is pending again, until it is published again.
        self.rolled_back: set[int] = set()
        self._limits = limits
        self._decided = decided
        self._violation = violation

    def began(self, life: Life, row: Row, task_id: str, instant_ms: int) -> None:
        """Judge how long ahead of its instant a row was made; the row is in the lane of its acceptance."""
        if self.clock_steps:
            return
        from_ms, upto_ms = self._decided[task_id]
        ahead_ms, limits, phase = instant_ms - upto_ms, self._limits, life.in_force(from_ms, upto_ms)
        if phase is not None and phase.policy.is_guarded and ahead_ms > 0:
            raise self._violation(f"row {row.id} of a guarded schedule was made {ahead_ms} ms before its instant")
        if ahead_ms > max(limits.look_ahead_ms, limits.herd_ms):
            raise self._violation(f"row {row.id} was made {ahead_ms} ms before its instant")
        if ahead_ms > limits.look_ahead_ms and row.lane == 0:
            raise self._violation(f"row {row.id} was made {ahead_ms} ms ahead, and is in the main lane")

    def judge(
        self, data: ShardData, life: Life, rows: Iterable[StoredRow], skips: Iterable[Skip], ends: Mapping[int, int]
    ) -> None:
        """Judge all decisions on a schedule; ``ends`` has how long each run may have gone on."""
        late = []
        for stored in rows:
            assert isinstance(stored.message, Message)
            instant_ms = data.runs[stored.row.id].instant_ms
            late.append(stored.message.eta_ms - instant_ms)
            self._judge_row(life, stored.row.id, stored.message.task_id, instant_ms)
        self._judge_jitter(life, late)
        runs = [(one, ends[one.timer_id]) for one in data.runs.values() if one.schedule in life.ids]
        accepted = {id_: one.accepted_ms for id_, one in {**data.forgotten, **data.rows}.items()}
        for one in skips:
            self._judge_skip(life, one, [end for run, end in runs if accepted[run.timer_id] <= one.at_ms])

    def _judge_row(self, life: Life, row_id: int, task_id: str, instant_ms: int) -> None:
        from_ms, upto_ms = self._decided[task_id]
        phase = life.in_force(from_ms, upto_ms)
        if phase is None:
            return
        policy = phase.policy
        is_latest = instant_ms + policy.every_ms > from_ms
        if policy.is_guarded and not is_latest:
            raise self._violation(f"row {row_id} of a guarded schedule is not of the latest instant")
        if instant_ms >= from_ms - self._limits.late_ms or policy.overlap == "queue_one":
            return
        may_run = {
            "none": False,
            "all": instant_ms >= from_ms - policy.catch_up_ms,
            "latest": is_latest,
        }[policy.catch_up]
        if not may_run:
            raise self._violation(f"row {row_id} was missed at {instant_ms}, and was made after {from_ms}: {policy}")

    def _judge_jitter(self, life: Life, late: list[int]) -> None:
        drawn = {(one.jitter_ms, one.jitter_by) for one in life.policies}
        if len(drawn) > 1 or not late:
            return
        [(jitter_ms, by)] = drawn
        if by == "name" and len(set(late)) > 1:
            raise self._violation(f"schedule {life.ids} has one jitter for its name, and {sorted(set(late))}")
        if by == "run" and jitter_ms >= 40 and len(late) >= ENOUGH and len(set(late)) == 1:
            raise self._violation(f"each of {len(late)} runs of schedule {life.ids} has the jitter {late[0]}")

    def _judge_skip(self, life: Life, one: Skip, ends: list[int]) -> None:
        if one.reason == PAUSED:
            if not any(phase.paused and one.at_ms in (phase.from_ms, phase.upto_ms) for phase in life.phases):
                raise self._violation(f"{one} is of no pause")
            return
        phase = life.in_force(one.at_ms, one.at_ms)
        if phase is None:
            return
        policy, count = phase.policy, len(phase.policy.instants(one.from_ms, one.to_ms))
        if one.count != count:
            raise self._violation(f"{one} has {count} instants")
        has_latest = one.to_ms + policy.every_ms > one.at_ms
        right = {MISSED: self._missed, OVERLAPPED: self._overlapped}[one.reason](policy, one, has_latest, ends)
        if not right:
            raise self._violation(f"{one} is not as {policy} says; earlier runs went on until {sorted(ends)[-3:]}")

    def _missed(self, policy: Policy, one: Skip, has_latest: bool, _ends: list[int]) -> bool:
        missed_before_ms = one.at_ms - self._limits.late_ms
        if policy.is_guarded and not has_latest:
            return one.from_ms < missed_before_ms
        if policy.catch_up == "latest" and has_latest:
            return False
        if policy.catch_up == "all":
            missed_before_ms = min(missed_before_ms, one.at_ms - policy.catch_up_ms)
        return one.to_ms < missed_before_ms

    def _overlapped(self, policy: Policy, one: Skip, has_latest: bool, ends: list[int]) -> bool:
        if not policy.is_guarded:
            return False
        return not has_latest or (policy.overlap == "skip" and any(end >= one.to_ms for end in ends))


def end_of(life: Life, run: Run, row: Row, pushed_ms: int | None, pends_again: bool) -> int:
    if run.ended_ms is not None:
        return run.ended_ms
    if pushed_ms is None or pends_again or row.lane == STOPPED:
        return NEVER
    return max(pushed_ms, row.due_ms + max(one.max_runtime_ms for one in life.policies))
