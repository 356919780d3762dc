"""The models keep their promises, each broken variant is refused, and the traces of the engine are accepted."""

from __future__ import annotations

import pytest

from tests.model.broken import VARIANTS
from tests.model.cancelling import Cancelling
from tests.model.checker import Counterexample, Model, explore
from tests.model.doubt import Doubt
from tests.model.lease import Lease
from tests.model.releasing import Releasing
from tests.model.traces import first_refusal, judge_all
from tests.simulation import test_planted  # noqa: F401  (its imports plant all bugs)
from tests.simulation.planted import PLANTED
from tests.simulation.seeds import seeds

SMALL = [Lease(2, 2), Lease(1, 2, loses=True), Doubt(1, 2), Cancelling(1, 2), Releasing(2, 1)]

#: Planted bugs that break a rule of a model, one or two for each model; ``python -m tests.model --planted`` tries all.
IN_SCOPE = {
    "no_epoch_check": 5,
    "position_outside_reservation": 3,
    "nothing_is_marked": 9,
    "unannounced_chunk": 8,
    "lease_not_looked_at": 7,
    "no_tombstone": 20,
    "carried_out_though_withdrawn": 33,
    "one_more_than_the_limit": 11,
    "runs_forgotten_at_the_adoption": 3,
    "unknown_without_a_look": 191,
}  #: with a seed that shows it; others are tried if the engine changes


@pytest.mark.parametrize("model", SMALL, ids=lambda model: type(model).__name__)
def test_every_state_keeps_the_promises_and_everything_can_arrive(model: Model) -> None:
    found = explore(model)
    assert found.states > 200


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: type(variant).__name__)
def test_a_model_without_a_rule_is_refused(variant: Model) -> None:
    with pytest.raises(Counterexample, match=r"\n  state: "):
        explore(variant)


@pytest.mark.slow
def test_the_models_accept_what_the_engine_does() -> None:
    for seed in seeds(5):
        judge_all(seed)


@pytest.mark.parametrize("name", IN_SCOPE)
def test_the_models_refuse_a_planted_bug(name: str) -> None:
    plant = next(plant for plant, _ in PLANTED if plant.__name__ == name)
    with plant() as broken:
        assert first_refusal(broken, (IN_SCOPE[name], *range(60))) is not None
