"""An action on all tasks that match a filter: its tasks, its state, and its steps of a few hundred tasks.

::

    filter ─► Matching ─► pages of 500 ─► one request each ─► results counted ─► cursor      … until no page is left

    the tasks     those that match when their page is read, and had their position when the action began: a task that
                  is sent later, or that the action itself has moved, is left out
    the state     a few hundred bytes, whatever the number of tasks, between two steps in the user's session
    the results   counts and the first problems in the state; each task's in the audit log, by the id of the action

A repeated step changes nothing more: a task that was cancelled answers ``already``, and a moved task is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from django.http import QueryDict
from django.utils.translation import gettext as _

from celery_wheel.control import Wheel
from celery_wheel.errors import RequestInDoubt, WheelUnavailable
from celery_wheel.requests.results import CommandResult
from celery_wheel.store.model import HOUR_MS, ORIGIN, REQUEUABLE, Position
from celery_wheel.store.ports.pages import END, Page, StoppedTask, Task
from celery_wheel.values.ids import uuid7
from django_wheel.formats import result_label, to_datetime
from django_wheel.views.actions import ACTIONS, TaskAction
from django_wheel.views.query import read_query
from django_wheel.views.selection import MAX_TASKS, SelectionError, has_usable_id

#: Problems that the state names; the audit log has all.
PROBLEMS = 20
#: Rejected tasks that are counted; their number is in no tally.
COUNTED = 10_000


@dataclass(frozen=True, slots=True)
class Matching:
    """The tasks that match the query string of a list."""

    page: str
    kind: str
    criteria: dict[str, Any]

    @classmethod
    def of(cls, action: TaskAction, filter_: str) -> Matching:
        """Raises SelectionError for a filter with a value that a list would ignore: more tasks would match."""
        query = read_query(QueryDict(filter_))
        kind = query.choice("kind", REQUEUABLE) or REQUEUABLE[0]
        if query.problems:
            text = _("Nothing was done, because the filter has an error: %(error)s.")
            raise SelectionError(text % {"error": "; ".join(query.problems)})
        return cls(action.page, kind, asdict(query.criteria))

    def read(self, wheel: Wheel, cursor: Position | None, limit: int) -> Page[Task] | Page[StoppedTask]:
        if self.page == "pending":
            return wheel.pending(cursor or ORIGIN, limit, **self.criteria)
        return wheel.outcomes(self.kind, before=cursor or END, limit=limit, **self.criteria)

    def count(self, wheel: Wheel) -> tuple[int, bool]:
        """Return how many tasks match, and whether that is their exact number."""
        if self.page == "pending":
            edges = [ms for ms in (self.criteria["from_ms"], self.criteria["to_ms"]) if ms is not None]
            pending = sum(hour.pending for hour in wheel.forecast(**self.criteria))
            return pending, all(at_ms % HOUR_MS == 0 for at_ms in edges)
        found, cursor = 0, None
        while found < COUNTED:
            page = self.read(wheel, cursor, MAX_TASKS)
            found += sum(one.is_stopped for one in page.items if isinstance(one, StoppedTask))
            cursor = page.next
            if cursor is None:
                return found, True
        return found, False

    @property
    def facts(self) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in self.criteria.items() if value is not None]


@dataclass(slots=True)
class BulkAction:
    """The state of an action, of values that a session can hold."""

    verb: str
    filter: str  #: query string of the list
    reason: str
    eta_ms: int | None
    total: int  #: tasks that matched when the action began
    ends: list[int]  #: by shard: later positions are left out
    id: str = field(default_factory=uuid7)
    cursor: list[int] | None = None
    results: dict[str, int] = field(default_factory=dict)
    problems: list[list[str]] = field(default_factory=list)  #: task id, result
    unnamed: int = 0  #: tasks without a usable id, which no request can name
    steps: int = 0
    is_over: bool = False
    was_stopped: bool = False
    busy_until_ms: int = 0  #: while a page carries a step out

    @property
    def action(self) -> TaskAction:
        return ACTIONS[self.verb]

    @property
    def counts(self) -> list[tuple[str, int]]:
        return [(result_label(result), count) for result, count in self.results.items()]

    @property
    def labelled_problems(self) -> list[tuple[str, str]]:
        return [(task_id, result_label(result)) for task_id, result in self.problems]

    @property
    def count(self) -> int:
        """The number of tasks so far."""
        return sum(self.results.values()) + self.unnamed

    @property
    def most(self) -> int:
        """The end of the progress bar."""
        return max(1, self.count if self.is_over else max(self.total, self.count))

    def step(self, wheel: Wheel, options: dict[str, Any]) -> None:
        """Carry out the action on the next tasks. After an error the step can be repeated: it has the other tasks."""
        cursor = None if self.cursor is None else Position(*self.cursor)
        page = Matching.of(self.action, self.filter).read(wheel, cursor, MAX_TASKS)
        tasks = [task for task in page.items if self._is_meant(task)]
        named = [task.task_id for task in tasks if has_usable_id(task)]
        results: Mapping[str, CommandResult] = {}
        if named:
            values = {"eta": None if self.eta_ms is None else to_datetime(self.eta_ms)}
            how = {**options, "reason": self.reason, "bulk": self.id, "transactional": False}
            try:
                results = self.action.ask(wheel, list(dict.fromkeys(named)), values, how)
            except (WheelUnavailable, RequestInDoubt) as error:  # of some shards
                self._count({task_id: one for task_id, one in error.results.items() if one == CommandResult.DONE})
                raise
        self.unnamed += len(tasks) - len(named)
        self._count(results)
        bad = [[task_id, str(result)] for task_id, result in results.items() if result != CommandResult.DONE]
        self.problems = (self.problems + bad)[:PROBLEMS]
        self.cursor = None if page.next is None else list(page.next)
        self.steps += 1
        self.is_over = page.next is None

    def _count(self, results: Mapping[str, CommandResult]) -> None:
        self.results = dict(Counter(self.results) + Counter(map(str, results.values())))

    def _is_meant(self, task: Task | StoppedTask) -> bool:
        if task.shard >= len(self.ends):  # the store has got more shards meanwhile
            return False
        if isinstance(task, StoppedTask):
            return task.is_stopped and task.id <= self.ends[task.shard]
        return task.seq <= self.ends[task.shard]


def begin(wheel: Wheel, action: TaskAction, filter_: str, values: Mapping[str, Any]) -> BulkAction:
    total, _exact = Matching.of(action, filter_).count(wheel)
    eta = values.get("eta")
    eta_ms = None if eta is None else round(eta.timestamp() * 1_000)
    ends = [wheel.store.state(shard).seq for shard in range(wheel.store.shards)]
    return BulkAction(action.verb, filter_, values["reason"], eta_ms, total, ends)
