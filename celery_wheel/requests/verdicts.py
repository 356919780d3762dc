"""Results of requests, and the merge of several shards' answers into one. Pure: no store, no clock.

::

    shard 0: {"a": "unknown", "b": "done"}  ─┐   BestVerdict   {"a": too_late, "b": done}
    shard 1: {"a": "too_late"}              ─┤   EveryShard    the same; in doubt until every shard has answered
    shard 2: no answer                      ─┘   Sums          counts of the shards are added up

    unknown < too_late < already < done

A name is *in doubt* when a shard that did not answer could change its result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar


class Verdict(StrEnum):
    """The certain result of a request for one task."""

    DONE = "done"  #: cancel: the task will not be dispatched; move: it will be dispatched at the new time
    ALREADY = "already"  #: cancel: an earlier request cancelled the task; it will not be dispatched
    TOO_LATE = "too_late"  #: the task was dispatched or may have been, or was rejected or expired
    UNKNOWN = "unknown"  #: the wheel has not accepted the task; a cancel holds if it arrives within a day


@dataclass(frozen=True, slots=True)
class Completed:
    """The tasks that watched a key; true if this request completed any."""

    done: int  #: cancelled, or dispatched at once
    too_late: int  #: dispatched at their time, or may have been

    def __bool__(self) -> bool:
        return self.done > 0


_RANK = {Verdict.UNKNOWN: 0, Verdict.TOO_LATE: 1, Verdict.ALREADY: 2, Verdict.DONE: 3}

Result = TypeVar("Result")


class Merge(ABC, Generic[Result]):
    """Merges the answers of several shards into one result a name."""

    @abstractmethod
    def merged(self, names: Sequence[str], answers: Iterable[Mapping[str, Any]]) -> dict[str, Result]:
        """Return the result of each name as far as the answers go."""

    def in_doubt(self, found: Mapping[str, Result], unanswered: set[str]) -> set[str]:
        """Return which of the names that a silent shard was asked about could still get another result."""
        return unanswered

    def certain(self, found: Mapping[str, Result], in_doubt: set[str]) -> dict[str, Result]:
        """Return the results that hold although shards did not answer."""
        return {name: result for name, result in found.items() if name not in in_doubt}


class EveryShard(Merge[Verdict]):
    """For a gate, which every shard has: it is closed or open once all shards have answered so."""

    def merged(self, names: Sequence[str], answers: Iterable[Mapping[str, Any]]) -> dict[str, Verdict]:
        found = dict.fromkeys(names, Verdict.UNKNOWN)
        for answer in answers:
            for name, verdict in answer.items():
                found[name] = max(found[name], Verdict(verdict), key=_RANK.__getitem__)
        return found


class BestVerdict(EveryShard):
    """For a task, which is mostly in one shard: the best of the verdicts counts."""

    def in_doubt(self, found: Mapping[str, Verdict], unanswered: set[str]) -> set[str]:
        return {name for name in unanswered if _RANK[found[name]] < _RANK[Verdict.ALREADY]}


class Sums(Merge[Completed]):
    """For a key, which tasks of several shards may watch: the counts are added up."""

    def merged(self, names: Sequence[str], answers: Iterable[Mapping[str, Any]]) -> dict[str, Completed]:
        found = dict.fromkeys(names, Completed(0, 0))
        for answer in answers:
            for name, counts in answer.items():
                before = found[name]
                found[name] = Completed(before.done + counts["done"], before.too_late + counts["too_late"])
        return found

    def certain(self, found: Mapping[str, Completed], in_doubt: set[str]) -> dict[str, Completed]:
        """Return counts of the shards that answered: in the others, nothing happens."""
        return {name: counts for name, counts in found.items() if name not in in_doubt or counts != Completed(0, 0)}


class WorstSaying(Merge[str]):
    """For a clock, of which each shard has its own: the answer that asks most of the operator counts."""

    def merged(self, names: Sequence[str], answers: Iterable[Mapping[str, Any]]) -> dict[str, str]:
        said = {one for answer in answers for one in answer.values()}
        return dict.fromkeys(names, next((one for one in ("refused", "accepted", "agreed") if one in said), ""))
