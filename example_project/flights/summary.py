"""The summary of a replay, from its reminders and their executions. Plain values only.

::

    scheduled = waiting + executed + lost        each reminder is exactly one of the three
    duplicated                                   executions beyond the first of a reminder
    early                                        executions before their due time
    lateness                                     execution minus due time, of the first executions
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    scheduled: int
    waiting: int  #: not executed, and not overdue by the grace
    dispatched: int | None  #: by the wheel, during the replay; None without a store
    executed: int
    lost: int
    duplicated: int
    early: int
    lateness_p50_ms: int | None
    lateness_p99_ms: int | None
    lateness_max_ms: int | None

    @property
    def faultless(self) -> bool:
        return self.lost == self.duplicated == self.early == 0

    def as_dict(self) -> dict[str, int | None]:
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the figures for people, one on each line."""
        labels = {name.replace("_", " ").removesuffix(" ms"): value for name, value in self.as_dict().items()}
        return [f"{name:<13} {_figure(name, value):>9}" for name, value in labels.items()]


def summarise(
    due_at_ms: Mapping[str, int],
    executions: Iterable[tuple[str, int]],
    now_ms: int,
    grace_ms: int,
    dispatched: int | None = None,
) -> ReplaySummary:
    """Compare what was scheduled (task id → due time) with the executions (task id, executed at).

    A reminder that was not executed counts as lost when it is overdue by ``grace_ms``.
    """
    first: dict[str, int] = {}
    duplicated = early = 0
    for task_id, executed_at_ms in sorted(executions, key=lambda execution: execution[1]):
        if task_id in first:
            duplicated += 1
        else:
            first[task_id] = executed_at_ms
        early += executed_at_ms < due_at_ms[task_id]
    missing = [due for task_id, due in due_at_ms.items() if task_id not in first]
    waiting = sum(now_ms < due + grace_ms for due in missing)
    late = sorted(at - due_at_ms[task_id] for task_id, at in first.items())
    return ReplaySummary(
        scheduled=len(due_at_ms),
        waiting=waiting,
        dispatched=dispatched,
        executed=len(first),
        lost=len(missing) - waiting,
        duplicated=duplicated,
        early=early,
        lateness_p50_ms=percentile(late, 50),
        lateness_p99_ms=percentile(late, 99),
        lateness_max_ms=late[-1] if late else None,
    )


def percentile(ordered: Sequence[int], percent: int) -> int | None:
    """Return the percentile by nearest rank: the smallest value that at least ``percent`` of all do not exceed."""
    return ordered[math.ceil(len(ordered) * percent / 100) - 1] if ordered else None


def _figure(name: str, value: int | None) -> str:
    if value is None:
        return "-"
    return f"{value:,} ms" if name.startswith("lateness") else f"{value:,}"
