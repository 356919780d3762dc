"""The same histories on RabbitMQ, where rows in doubt are published again with a mark."""

from __future__ import annotations

from collections import Counter

from tests.simulation.rabbit_world import RabbitWorld
from tests.simulation.seeds import as_long_as_it_takes, seeds
from tests.simulation.test_promises import HAPPENS, LEAST_SEEDS


@as_long_as_it_takes
def test_no_seed_breaks_a_promise_on_rabbitmq() -> None:
    happened: Counter[str] = Counter()
    for seed in seeds(LEAST_SEEDS, 1_000, budget_s=12):
        happened += RabbitWorld(seed).run().happened()
    never = [what for what in HAPPENS_ON_RABBITMQ if not happened[what]]
    assert not never, f"the simulation no longer reaches: {never}"


HAPPENS_ON_RABBITMQ = [what for what in HAPPENS if what not in ("rollbacks", "lost by redis", "emptied")]
HAPPENS_ON_RABBITMQ += ["refused", "sent twice"]
