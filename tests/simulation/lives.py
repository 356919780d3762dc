"""Schedules as an oracle sees them: a life has phases, each with a policy; instants are multiples of an interval."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from celery_wheel.store.schedule_model import BEAT


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
    source: str
    phases: list[Phase] = field(default_factory=list)
    deleted: bool = False
    too_late: set[int] = field(default_factory=set)
    #: Instants whose rows were pending when the schedule moved, and the number of its phases by then: no later change
    #: withdraws these rows.
    carried: dict[int, int] = field(default_factory=dict)
    #: Instants that a backfill made, and the largest run before it.
    backfilled: dict[int, int] = field(default_factory=dict)

    def is_as_beat(self, policy: Policy) -> bool:
        """Whether one instant runs for all that are overdue, as in Celery's Beat."""
        return self.source == BEAT and policy.catch_up == "latest" and not policy.is_guarded

    @property
    def policies(self) -> list[Policy]:
        return [one.policy for one in self.phases]

    def in_force(self, from_ms: int, upto_ms: int) -> Phase | None:
        """Return the only phase of a time; None where a change lies in it."""
        found = [
            one for one in self.phases if one.from_ms <= upto_ms and (one.upto_ms is None or one.upto_ms >= from_ms)
        ]
        return found[0] if len(found) == 1 else None

    def is_of_former_definition(self, instant_ms: int) -> bool:
        """Whether a change since the move may have made the instant of a carried row another time."""
        return instant_ms in self.carried and len(self.phases) > self.carried[instant_ms]
