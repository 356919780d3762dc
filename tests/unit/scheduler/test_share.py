"""The share of each scheduler: even, with as few moves as possible."""

import random
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_wheel.scheduler.share import Role, Share, share


def test_only_the_scheduler_with_most_shards_gives_one_to_a_newcomer() -> None:
    holders: dict[int, str | None] = {0: "a", 1: "a", 2: "a", 3: "b", 4: "b", 5: "b"}
    gives = [share(name, ["a", "b", "c"], holders, [n for n in holders if holders[n] == name]).give for name in "abc"]
    assert gives == [2, 5, None]


def test_no_shard_is_given_while_one_is_free() -> None:
    holders = {0: "a", 1: "a", 2: "gone", 3: "b"}
    assert share("a", ["a", "b", "c"], holders, [0, 1]).give is None
    assert 2 in share("c", ["a", "b", "c"], holders, []).take


class Cluster:
    """Schedulers that apply their share in any order, and a store that gives a shard to one only."""

    def __init__(self, shards: int, rng: random.Random, roles: Mapping[str, Role] = {}) -> None:
        self.roles = roles
        self.holders: dict[int, str | None] = dict.fromkeys(range(shards))
        self.alive: set[str] = set()
        self.rng = rng
        self.moves = 0

    def settle(self) -> None:
        for _ in range(3 * len(self.holders) + 10):
            for name in self.rng.sample(sorted(self.alive), len(self.alive)):
                self.apply(name)

    def apply(self, name: str) -> None:
        held = [shard for shard, holder in self.holders.items() if holder == name]
        found = share(name, sorted(self.alive), self.holders, held, self.roles.get(name, Role.ANY))
        for shard in found.take:
            if self.holders[shard] not in self.alive:
                self.holders[shard] = name
                self.moves += 1
        if found.give is not None:
            self.holders[found.give] = None

    def counts(self) -> list[int]:
        found = Counter(self.holders.values())
        return sorted(found[name] for name in self.alive)


@settings(max_examples=200, deadline=None)
@given(
    shards=st.integers(1, 24),
    changes=st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=12),
    seed=st.integers(0, 2**32),
)
def test_the_shares_become_even_with_as_few_moves_as_possible(
    shards: int, changes: list[tuple[bool, int]], seed: int
) -> None:
    cluster = Cluster(shards, random.Random(seed))
    for joins, number in changes:
        before = dict(cluster.holders)
        name = f"scheduler-{number}"
        if joins:
            cluster.alive.add(name)
        else:
            cluster.alive.discard(name)
        if not cluster.alive:
            continue
        cluster.moves = 0
        cluster.settle()
        counts = cluster.counts()
        assert sum(counts) == shards
        assert counts[-1] - counts[0] <= 1
        orphans = sum(holder not in cluster.alive for holder in before.values())
        high = -(-shards // len(cluster.alive))
        assert cluster.moves <= orphans + high, "more shards moved than a newcomer gets"
        cluster.moves = 0
        cluster.settle()
        assert cluster.moves == 0, "shards still move"


@settings(max_examples=200, deadline=None)
@given(
    shards=st.integers(2, 12),
    changes=st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=12),
    seed=st.integers(0, 2**32),
)
def test_shard_0_stays_with_parents_and_the_shares_become_even(
    shards: int, changes: list[tuple[bool, int, int]], seed: int
) -> None:
    """Parents ``0-0``, ``1-0``, … on several machines with children ``0-1``, …; a child ends with its parent."""
    roles = {f"{host}-{n}": Role.CHILD if n else Role.PARENT for host in range(3) for n in range(4)}
    cluster = Cluster(shards, random.Random(seed), roles)
    for joins, host, number in changes:
        family = {f"{host}-{n}" for n in range(4)}
        if joins:
            cluster.alive |= {f"{host}-0", f"{host}-{number}"}
        else:
            cluster.alive -= {f"{host}-{number}"} if number else family
        if not cluster.alive:
            continue
        cluster.settle()
        counts = cluster.counts()
        assert roles[str(cluster.holders[0])] is Role.PARENT
        assert sum(counts) == shards
        assert counts[-1] - counts[0] <= 1
        cluster.moves = 0
        cluster.settle()
        assert cluster.moves == 0, "shards still move"


@pytest.mark.parametrize("me", [f"host/{number}" for number in range(8)])
def test_a_shard_that_a_scheduler_itself_lost_is_free_for_it(me: str) -> None:
    """The store names it as the holder still: nobody else takes that shard, and another is not to be had."""
    assert share(me, ["another", me], {0: me, 1: "another"}, held=[]) == Share(take=frozenset({0}))
    assert share(me, ["another", me], {0: "another", 1: me}, held=[]) == Share(take=frozenset({1}))
