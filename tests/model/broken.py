"""Each model with one rule of the protocol left out. The search refuses each of these with a counterexample.

A variant shows that its rule is needed, and that the search can fail. ``SuspendedBetween`` is a limit that
docs/promises.md states: RabbitMQ cannot refuse a holder that was suspended between the look at its lease and the write.
"""

from __future__ import annotations

from typing import Any

from tests.model.cancelling import PENDING, Cancelling
from tests.model.checker import Model, require
from tests.model.doubt import Doubt
from tests.model.lease import FENCED, PUBLISHED, Lease
from tests.model.releasing import NONE, Releasing

VARIANTS: list[Model] = []


def _with(model: type[Model], name: str, *bounds: Any, loses: bool = False, **rules: Any) -> None:
    made = type(name, (model,), rules)
    VARIANTS.append(made(*bounds, loses=True) if loses else made(*bounds))


def _nothing(self: Any, *args: Any) -> None:
    """Stands for a rule that is left out."""


def _pushes_blindly(self: Lease, state: Any, epoch: int, chunk: Any) -> str:
    return FENCED if self.is_fenced(state, epoch) else PUBLISHED


_with(Lease, "NoEpochCheckInTheStore", 2, 2, check_epoch=_nothing)
_with(Lease, "NoEpochCheckInRedis", 1, 2, shown=lambda self, state, epoch: state.redis.epoch or epoch)
_with(Lease, "NoCompareAndSet", 1, 2, answer=_pushes_blindly)
_with(Lease, "SettledBeforeThePublish", 1, 1, check_offset=_nothing)
_with(Lease, "OffsetsNotComparedAtTheAdoption", 1, 2, check_compared=_nothing)
_with(Lease, "PositionsBehindTheWatermark", 2, 1, check_position=_nothing)
_with(Lease, "RowsOfAChunkMove", 1, 1, check_move=_nothing)
_with(Lease, "EmptiedRedisTakenForANewOne", 1, 2, loses=True, check_new_lane=_nothing)

_with(Doubt, "SentBeforeTheStoreKnows", 1, 2, check_prepared=_nothing)
_with(Doubt, "RowsInDoubtUnmarked", 1, 2, may_be_second=lambda self, state, epoch, row: False)
_with(Doubt, "SuspendedBetween", 1, 2, check_holds=_nothing)
_with(Doubt, "SettledThoughNotSent", 1, 1, check_settled=_nothing)


def _pending(self: Cancelling, state: Any, task: str) -> None:
    require(state.rows.get(task) == PENDING, "the row is not pending")


_with(Cancelling, "DoneThoughHandedOver", 1, 1, check_free=_pending)
_with(Cancelling, "NoTombstone", 1, 1, bury=lambda self, buried, task: buried)
_with(Cancelling, "UnknownWithoutALook", 1, 1, check_looked=_nothing)
_with(Cancelling, "CarriedOutThoughWithdrawn", 1, 1, check_asked=_nothing)
_with(Cancelling, "NothingReserved", 1, 1, reserved=lambda self, state: set(), check_guard=_nothing)
_with(Cancelling, "PublishedRowsForgottenAtTheAdoption", 1, 1, adopted=lambda self, state: NONE, check_free=_pending)


def _one_more(self: Releasing, state: Any, row: int) -> None:
    require(row in state.slots or len(state.slots) <= self.limit, "the group has no room")


_with(Releasing, "OneMoreThanTheLimit", 2, 1, check_room=_one_more)
_with(Releasing, "RunsForgottenAtTheAdoption", 2, 1, open_runs=lambda self, state: NONE)
_with(Releasing, "PublishedRowsNotCountedAtTheAdoption", 2, 1, unsettled=lambda self, state: NONE)
_with(
    Releasing,
    "ALostReportKeepsItsSlot",
    2,
    1,
    expire=lambda self, state, row: require(False, "never"),
    open_runs=lambda self, state: state.settled - state.ended,
    unsettled=lambda self, state: state.pushed - state.settled - state.ended,
)
_with(Releasing, "ALateRowPassesTheLine", 2, 1, check_line=_nothing)
_with(Releasing, "NotTheFirstOfTheLine", 2, 1, check_first=_nothing)
