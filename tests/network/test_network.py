"""Faults of the network in a short form; ``make network`` runs for as long as wanted."""

import random
from pathlib import Path

import pytest

from tests.kit.patience import patience
from tests.network.scenario import KINDS, SECONDS, SERVERS, WHO, Trouble, judged, suffer, troubles
from tests.network.stack import Hosts

#: Seconds: see the section of the network in docs/evidence.md.
STORE_S, BROKER_S = 3, 10


@pytest.mark.slow
def test_a_holder_that_is_cut_off_from_one_server_is_replaced(tmp_path: Path) -> None:
    with Hosts(tmp_path, "redis", 7) as hosts:
        costs = [suffer(hosts, Trouble("victim", (server,), "whole", patience(12))) for server in ("store", "broker")]
        costs.append(suffer(hosts, Trouble("all", ("store", "broker"), "reset", 1)))
        verdict, broken = judged(hosts, costs)
    print(verdict, *costs, sep="\n")
    assert not broken, str(verdict)
    assert verdict.ran > 100
    for cost, limit_s in zip(costs, (STORE_S, BROKER_S), strict=False):
        assert cost.taken is not None, cost
        assert cost.taken < patience(limit_s), cost
        assert cost.ready == 503, "the one that is cut off says so"


def test_each_combination_comes_before_any_comes_again() -> None:
    rounds = troubles(random.Random(7))
    count = len(WHO) * len(SERVERS) * len(KINDS) * len(SECONDS) + 2 * len(SERVERS) * 2
    first = [next(rounds) for _ in range(count)]
    assert len(set(first)) == count
    assert next(rounds) in first
