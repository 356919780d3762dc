"""Which tasks are meant: the numbers of rows that a browser sent, looked up in the store.

Numbers may be anybody's making: of what a browser sends nothing is taken for a task's id. A task is asked for by its
id, so every try of it that waits is meant; a number that the store does not know is told.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from celery_wheel.control import Wheel
from celery_wheel.requests.arguments import id_of
from celery_wheel.store.ports.pages import Task
from django_wheel.views.actions import Action

#: Tasks of one request, as in one command of ``celery_wheel.requests``.
MOST = 500


class Refused(Exception):
    """What was asked for is nothing that could be done; the text says why, to people."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """``gone``: how many were forgotten meanwhile; ``nameless``: how many have no id by which they could be meant."""

    tasks: list[Task]
    gone: int
    nameless: int

    @property
    def task_ids(self) -> list[str]:
        return list(dict.fromkeys(one.task_id for one in self.tasks))

    @property
    def left_out(self) -> str:
        parts = []
        if self.gone:
            parts.append(
                f"{self.gone:,} of those selected {'is' if self.gone == 1 else 'are'} not in the store any more"
            )
        if self.nameless:
            parts.append(f"{self.nameless:,} {'has' if self.nameless == 1 else 'have'} no task id, and can only stay")
        return "; ".join(parts)


def chosen_of(wheel: Wheel, action: Action, rows: Iterable[str]) -> Chosen:
    """Raises Refused where there is nothing that could be asked for."""
    given = list(dict.fromkeys(rows))
    if not given:
        raise Refused("Nothing was selected, and nothing was done: select the tasks first.")
    if len(given) > MOST:
        raise Refused(
            f"Nothing was done: {MOST:,} tasks at most can be selected at once, got {len(given):,}; the command line "
            f"takes any number: celery -A <project> wheel {action.verb.replace('_', '-')}"
        )
    numbers = {int(one) for one in given if one.isascii() and one.isdecimal() and len(one) <= 18}
    found = wheel.store.browse.tasks(numbers)
    tasks = [one for one in found if _can_be_named(one)]
    chosen = Chosen(tasks, len(given) - len(found), len(found) - len(tasks))
    if not tasks:
        raise Refused(f"Nothing was done: {chosen.left_out}.")
    return chosen


def _can_be_named(task: Task) -> bool:
    try:
        id_of(task.task_id)
    except ValueError:  # bytes that could not be read have none
        return False
    return True
