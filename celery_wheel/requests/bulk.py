"""``BulkActions``: ``app.wheel.bulk``, an act on all tasks that match a filter, which goes on without its asker.

::

    begin ─► id      a command in the inbox of each shard; nobody waits      get, latest   what the store has of it
    stop, continue_, discard     the same                                    result        when it is over

See ``celery_wheel.store.bulk_model`` for the states, and ``celery_wheel.engine.bulk_action`` for the steps.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Unpack

from celery_wheel.errors import ArgumentError, WheelUnavailable
from celery_wheel.overview import SILENT_MS
from celery_wheel.requests.arguments import CommandOptions, text_of
from celery_wheel.requests.asynchronous import check_interruption, twin
from celery_wheel.requests.request import Asker, Request
from celery_wheel.requests.results import CommandResult
from celery_wheel.store.bulk_model import (
    ASKED,
    DISCARDED,
    FINISHED,
    RUNNING,
    STOPPED,
    VERBS,
    BulkPart,
    BulkRequest,
    BulkShard,
    Do,
)
from celery_wheel.store.model import BULK, MOVE, REQUEUABLE, REQUEUE
from celery_wheel.store.ports.pages import Criteria
from celery_wheel.values.ids import uuid7
from celery_wheel.values.instants import now_ms

#: Seconds between two looks at an action that somebody waits for.
LOOK_S = 0.1

#: The states in the order in which they name the whole action.
_URGENCY = (ASKED, RUNNING, STOPPED, DISCARDED, FINISHED)


@dataclass(frozen=True)
class BulkAction:
    """A bulk action as the store has it at one moment: the sums of its parts."""

    id: str
    shards: list[BulkShard]  #: all shards of the store, also those without a part

    @cached_property
    def parts(self) -> list[BulkPart]:
        return [one.part for one in self.shards if one.part is not None]

    @property
    def request(self) -> BulkRequest:
        return self.parts[0].request

    @property
    def state(self) -> str:
        """``asked``, ``running``, ``stopped``, ``discarded`` or ``finished``: the first of these that a shard has."""
        return min((one.state for one in self.parts), key=_URGENCY.index)

    @property
    def asked(self) -> set[str]:
        """Commands about the action that no holder has read yet: begin, stop, continue, discard."""
        return {do for one in self.shards for do in one.asked}

    @property
    def is_over(self) -> bool:
        return self.state in (FINISHED, DISCARDED)

    @property
    def is_counted(self) -> bool:
        """Whether ``found`` is the number of all tasks; before, more may be found."""
        return all(one.progress.is_counted for one in self.parts)

    @property
    def found(self) -> int:
        """The number of tasks that matched when the holders counted them."""
        return sum(one.progress.found for one in self.parts)

    @property
    def results(self) -> dict[str, int]:
        """Result → number of tasks, as the store has it."""
        return dict(sum((Counter(one.progress.results) for one in self.parts), Counter[str]()))

    @property
    def count(self) -> int:
        """The number of tasks that have a result."""
        return sum(self.results.values())

    @property
    def problems(self) -> list[tuple[str, str]]:
        """The first tasks with another result than done, each with its result."""
        return [problem for one in self.parts for problem in one.progress.problems]

    @property
    def changed_ms(self) -> int:
        return max(one.changed_ms for one in self.parts)

    def waiting(self, now_ms: int) -> list[int]:
        """Return the shards that have something to do for the action, and that no live scheduler holds."""
        return [
            one.shard
            for one in self.shards
            if (one.asked or (one.part is not None and one.part.state == RUNNING))
            and (one.holder is None or one.seen_ms is None or now_ms - one.seen_ms >= SILENT_MS)
        ]


class BulkActions:
    """The bulk actions of one app.

    Each call that changes something takes ``reason`` and ``actor`` as ``Wheel.cancel`` does, and is in the audit log.
    It waits for no scheduler. The holders carry a bulk action out in steps of 200 tasks, beside their other work.
    """

    def __init__(self, wheel: Asker) -> None:
        self._wheel = wheel

    def begin(
        self,
        verb: str,
        criteria: Criteria,
        /,
        *,
        outcome: str = "",
        eta_ms: int | None = None,
        **how: Unpack[CommandOptions],
    ) -> str:
        """Begin a bulk action, and return its id.

        Args:
            verb: "cancel"; "move", to ``eta_ms``, or now without it; "requeue".
            criteria: the filter; one without any value is for all tasks.
            outcome: of a requeue: "rejected" or "expired" tasks.
        """
        request = self.request_to_begin(verb, criteria, outcome, eta_ms, how)
        request.send()
        return str(request.single)

    def request_to_begin(self, verb: str, criteria: Criteria, outcome: str, eta_ms: int | None, how: Any) -> Request:
        if verb not in VERBS or (verb == REQUEUE) != (outcome in REQUEUABLE) or (eta_ms is not None and verb != MOVE):
            raise ArgumentError(f"verb must be cancel, move or requeue with its own options, got {verb!r:.60}")
        for name in ("task", "queue", "key", "group"):
            if (value := getattr(criteria, name)) is not None:
                text_of(name, value)
        options = BulkRequest("", verb, criteria, outcome, eta_ms).options
        return self._wheel.request(BULK, [action := uuid7()], action, how, options)

    def stop(self, action: str, **how: Unpack[CommandOptions]) -> None:
        """Stop an action before its next step. It can be continued for a week."""
        self._ask("stop", action, how)

    def continue_(self, action: str, **how: Unpack[CommandOptions]) -> None:
        """Continue an action that was stopped, after its last step."""
        self._ask("continue", action, how)

    def discard(self, action: str, **how: Unpack[CommandOptions]) -> None:
        """End an action for good; tasks that it has changed stay changed."""
        self._ask("discard", action, how)

    def _ask(self, do: Do, action: str, how: Any) -> None:
        self._wheel.request(BULK, [action], action, how, {"do": do}).send()

    def get(self, action: str) -> BulkAction | None:
        """Return an action by its id; None where the store does not know it (any more)."""
        found = BulkAction(action, self._wheel.store.bulk_shards(action))
        return found if found.parts else None

    def latest(self, limit: int = 20) -> list[BulkAction]:
        """Return the latest actions, the newest first: those under way, and those of the last week."""
        found: Iterable[BulkAction | None] = map(self.get, self._wheel.store.bulk_actions(limit))
        return [one for one in found if one is not None]

    def result(self, action: str, timeout: float, turn: Any = None) -> BulkAction:
        """Wait until an action is over, and return it; the time-out begins anew with each step.

        Raises WheelUnavailable where no step comes within it: the action is stopped then.
        """
        last, until_s = None, time.monotonic() + timeout
        while True:
            found = self.get(action)
            if found is None:
                raise ArgumentError(f"action must be the id of a bulk action of the last week, got {action!r:.60}")
            if found.is_over:
                return found
            progress = [(one.changed_ms, one.progress.count, one.progress.after) for one in found.parts]
            if progress != last:
                last, until_s = progress, time.monotonic() + timeout
            if time.monotonic() >= until_s:
                self.stop(action, reason="its asker no longer waits for it")
                shards = found.waiting(now_ms()) or [one.shard for one in found.parts]
                raise WheelUnavailable(
                    f"no scheduler went on with the bulk action {action} in shard {', '.join(map(str, shards))} within "
                    f"{timeout:g} s; it is stopped after {found.count:,} of {found.found:,} tasks; start a scheduler: "
                    "celery -A proj beat -S wheel",
                    {CommandResult(name): count for name, count in found.results.items()},
                    shards,
                )
            check_interruption()
            if turn is None:
                time.sleep(LOOK_S)
            else:
                turn()

    abegin = twin(begin)
    astop = twin(stop)
    acontinue_ = twin(continue_)
    adiscard = twin(discard)
    aget = twin(get)
    alatest = twin(latest)
    aresult = twin(result)
