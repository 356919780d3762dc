"""The same histories on RabbitMQ, where what is in doubt is sent again with a mark."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.rabbit_world import RabbitWorld
from tests.simulation.test_promises import HAPPENS, SEEDS


@pytest.mark.timeout(300 if SEEDS <= 1000 else 0)
def test_no_seed_breaks_a_promise_on_rabbitmq() -> None:
    happened: Counter[str] = Counter()
    for seed in range(SEEDS):
        happened += RabbitWorld(seed).run().happened()
    never = [what for what in HAPPENS_ON_RABBITMQ if not happened[what]]
    assert not never, f"the simulation no longer reaches: {never}"


HAPPENS_ON_RABBITMQ = [what for what in HAPPENS if what not in ("rollbacks", "lost by redis")]
HAPPENS_ON_RABBITMQ += ["refused", "sent twice"]
