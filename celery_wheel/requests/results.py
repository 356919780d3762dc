"""Results of requests, and the merge of several shards' answers into one. Pure: no store, no clock.

A name is *in doubt* when a shard that did not answer could change its result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, Literal, TypeVar

from celery_wheel.values.instants import utc


class CommandResult(StrEnum):
    """The certain result of a request for one task."""

    DONE = "done"  #: cancel: the task will not be dispatched; move: it will be dispatched at the new time
    ALREADY = "already"  #: cancel: an earlier request cancelled the task; it will not be dispatched
    TOO_LATE = "too_late"  #: the task was dispatched or may have been, or was rejected or expired
    UNKNOWN = "unknown"  #: the wheel has not accepted the task; a cancel holds if it arrives within a day


@dataclass(frozen=True, slots=True)
class CompletionResult:
    """The tasks that watched a key; true if this request completed any."""

    done: int  #: cancelled, or dispatched at once
    too_late: int  #: dispatched at their time, or may have been

    def __bool__(self) -> bool:
        return self.done > 0


@dataclass(frozen=True, slots=True)
class ScheduleAnswer:
    """The result of a request for one recurring schedule; true if this request changed it or made an occurrence."""

    result: ScheduleWord
    reason: str = ""  #: of a refusal; or a hint about what was done
    too_late: tuple[datetime, ...] = ()  #: occurrences to withdraw that were dispatched, or may have been
    task_ids: tuple[str, ...] = ()  #: of the occurrences that a trigger or a backfill has made

    def __bool__(self) -> bool:
        return self.result == "done"


_RANK = {CommandResult.UNKNOWN: 0, CommandResult.TOO_LATE: 1, CommandResult.ALREADY: 2, CommandResult.DONE: 3}

#: Answers to a clock, the most urgent for the operator last.
_URGENCY = ("", "agreed", "accepted", "refused")

#: Result of a request for a schedule. done: it was carried out; already: the schedule was so before; unknown: there is
#: no schedule of that name; refused: see the reason of the answer.
ScheduleWord = Literal["done", "already", "unknown", "refused"]

Result = TypeVar("Result")


class Merge(ABC, Generic[Result]):
    """Merges the answers of several shards into one result a name."""

    def merged(self, names: Sequence[str], answers: Iterable[Mapping[str, Any]]) -> dict[str, Result]:
        """Return the result of each name as far as the answers go."""
        values: dict[str, list[Any]] = {name: [] for name in names}
        for answer in answers:
            for name, value in answer.items():
                values[name].append(value)
        return {name: self._merge(found) for name, found in values.items()}

    @abstractmethod
    def _merge(self, values: list[Any]) -> Result:
        """Return one result for the values of the shards that have answered."""

    def in_doubt(self, found: Mapping[str, Result], unanswered: set[str]) -> set[str]:
        """Return those names of a silent shard's commands that could still get another result."""
        return unanswered

    def certain(self, found: Mapping[str, Result], in_doubt: set[str]) -> dict[str, Result]:
        """Return the results that hold although shards did not answer."""
        return {name: result for name, result in found.items() if name not in in_doubt}


class EveryShard(Merge[CommandResult]):
    """For a gate, which every shard has, or a group, which one has: it is changed once all of them have answered so."""

    def _merge(self, values: list[Any]) -> CommandResult:
        return max(map(CommandResult, values), key=_RANK.__getitem__, default=CommandResult.UNKNOWN)


class BestResult(EveryShard):
    """For a task, which is mostly in one shard: the best of the shards' results counts."""

    def in_doubt(self, found: Mapping[str, CommandResult], unanswered: set[str]) -> set[str]:
        return {name for name in unanswered if _RANK[found[name]] < _RANK[CommandResult.ALREADY]}


class SummedCounts(Merge[CompletionResult]):
    """For a key, which tasks of several shards may watch: the counts are added up."""

    def _merge(self, values: list[Any]) -> CompletionResult:
        return CompletionResult(sum(one["done"] for one in values), sum(one["too_late"] for one in values))

    def certain(self, found: Mapping[str, CompletionResult], in_doubt: set[str]) -> dict[str, CompletionResult]:
        """Return counts of the shards that answered: in the others, nothing happens."""
        none = CompletionResult(0, 0)
        return {name: counts for name, counts in found.items() if name not in in_doubt or counts != none}


class SummedTotals(Merge[dict[str, int]]):
    """For an erasure, which every shard carries out: the numbers of each kind are added up."""

    def _merge(self, values: list[Any]) -> dict[str, int]:
        return {kind: sum(one[kind] for one in values) for kind in (values[0] if values else ())}


class MostUrgentAnswer(Merge[str]):
    """For a clock, of which each shard has its own: the answer that most needs the operator counts."""

    def _merge(self, values: list[Any]) -> str:
        return max(values, key=_URGENCY.index, default="")


class OnlyAnswer(Merge[ScheduleAnswer]):
    """The answer of the one shard that was asked; ``worded`` rewrites the reason of a refusal."""

    def __init__(self, worded: Callable[[str], str] = str) -> None:
        self._worded = worded

    def _merge(self, values: list[Any]) -> ScheduleAnswer:
        if not values:
            return ScheduleAnswer("unknown")
        [answer] = values
        too_late = tuple(map(utc, answer.get("too_late", ())))
        reason = answer.get("reason", "")
        if answer["result"] == "refused":
            reason = self._worded(reason)
        return ScheduleAnswer(answer["result"], reason, too_late, tuple(answer.get("task_ids", ())))
