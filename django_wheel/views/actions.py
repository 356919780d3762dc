"""What can be done to tasks from the admin: a table of verbs, and what each verdict means in words.

::

    cancel, run_now, reschedule   what waits            too late: it was handed to the broker
    cancel                                              already: an earlier request cancelled it
    requeue                       what was set aside    too late: it rests no more

The words follow a number: "1 is cancelled", "3 are cancelled".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from celery_wheel.requests.verdicts import Verdict
from celery_wheel.store.model import SET_ASIDE
from django_wheel.forms import When, Why

#: For one, and for several.
Words = tuple[str, str]
#: The wheel, the task ids, what the form says, and who asks, for how long.
Ask = Callable[[Any, list[str], dict[str, Any], dict[str, Any]], Mapping[str, Verdict]]

_HANDED: Words = (
    "was too late: it was handed to the broker already, or may have been",
    "were too late: they were handed to the broker already, or may have been",
)
_ALREADY: Words = (
    "was cancelled by an earlier request, and will not be dispatched",
    "were cancelled by earlier requests, and will not be dispatched",
)
_UNHEARD: Words = ("nobody has heard of", "nobody has heard of")


@dataclass(frozen=True, slots=True)
class Action:
    verb: str
    label: str
    says: str  #: what comes of it, before it is done
    page: str  #: where such tasks are listed
    ask: Ask
    done: Words
    too_late: Words = _HANDED
    unknown: Words = _UNHEARD
    form: type[Why] = Why

    def words(self, verdict: Verdict, count: int) -> str:
        words = {
            Verdict.DONE: self.done,
            Verdict.ALREADY: _ALREADY,
            Verdict.TOO_LATE: self.too_late,
            Verdict.UNKNOWN: self.unknown,
        }
        return f"{count:,} {words[verdict][count != 1]}"


CANCEL = Action(
    "cancel",
    "Cancel",
    "They do not leave any more. A task that has several tries waiting is cancelled as a whole.",
    "pending",
    lambda wheel, ids, given, how: wheel.cancel(ids, **how),
    done=("is cancelled", "are cancelled"),
    unknown=(
        "nobody has heard of; if it comes within a day, it will not leave",
        "nobody has heard of; if they come within a day, they will not leave",
    ),
)
RUN_NOW = Action(
    "run_now",
    "Run now",
    "They leave for their queues at once.",
    "pending",
    lambda wheel, ids, given, how: wheel.run_now(ids, **how),
    done=("leaves now", "leave now"),
)
RESCHEDULE = Action(
    "reschedule",
    "Reschedule",
    "They leave at the new time, all of them at the same.",
    "pending",
    lambda wheel, ids, given, how: wheel.reschedule(ids, eta=given["eta"], **how),
    done=("leaves at the new time", "leave at the new time"),
    form=When,
)
REQUEUE = Action(
    "requeue",
    "Requeue",
    "They leave for their queues at once. First do away with the reason for which they were set aside.",
    "rejected",
    lambda wheel, ids, given, how: wheel.requeue(ids, **how),
    done=("leaves now", "leave now"),
    too_late=("is not set aside any more", "are not set aside any more"),
    unknown=("is not in the store any more", "are not in the store any more"),
)

OF_WAITING = (CANCEL, RUN_NOW, RESCHEDULE)
OF_SET_ASIDE = (REQUEUE,)
ACTIONS = {one.verb: one for one in (*OF_WAITING, *OF_SET_ASIDE)}


def of_state(state: str) -> tuple[Action, ...]:
    """What can be done to a task in this state, as ``browse.Detail`` has it."""
    if state == "pending":
        return OF_WAITING
    return OF_SET_ASIDE if state in SET_ASIDE else ()
