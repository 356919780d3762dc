"""Packs of the inbox: each of their messages is accepted once, whichever way it comes as well, and none is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest

from celery_wheel.engine import ingest
from celery_wheel.engine.intake.inbox import parse
from celery_wheel.store.model import Change, InboxItem
from tests.simulation.happenings import Violation
from tests.simulation.model_store import ModelStore
from tests.simulation.pack_world import PackWorld, RabbitPackWorld
from tests.simulation.seeds import as_long_as_it_takes, seeds


@as_long_as_it_takes
@pytest.mark.parametrize("world", [PackWorld, RabbitPackWorld])
def test_no_seed_breaks_a_promise_with_packs(world: type[PackWorld | RabbitPackWorld]) -> None:
    happened: Counter[str] = Counter()
    for seed in seeds(30, 1_000, budget_s=6):
        happened += world(seed).run().happened()
    never = [what for what in ("packed", "sent again in a pack", "known", "cancelled") if not happened[what]]
    assert not never, f"the simulation no longer reaches: {never}"


def accepted_in_part(item: InboxItem, decode: Any, derived_id: Any) -> Any:
    """The first message of a pack is accepted, and the whole item is deleted."""
    meaning = parse(item, decode, derived_id)
    return meaning[:1] if isinstance(meaning, list) else meaning


def test_a_pack_that_is_accepted_in_part_is_found() -> None:
    with mock.patch.object(ingest, "parse", accepted_in_part):
        assert is_found(PackWorld)


class Forgetful(ModelStore):
    """Compares the envelopes with all that are stored but the latest."""

    def known(self, shard: int, envelope_ids: Sequence[str]) -> dict[str, str]:
        latest = max(self.disk.shard(shard).envelopes, default="")
        return {id_: task_id for id_, task_id in super().known(shard, envelope_ids).items() if id_ != latest}

    def apply(self, shard: int, epoch: int, change: Change) -> None:
        with self.disk.lock:
            for row in change.rows:
                self.disk.shard(shard).envelopes.pop(row.message.envelope_id, None)
            super().apply(shard, epoch, change)


def test_a_message_that_is_accepted_twice_is_found() -> None:
    class Broken(PackWorld):
        store_class = Forgetful

    assert is_found(Broken)


def is_found(world: Callable[[int], PackWorld]) -> bool:
    for seed in range(200):
        try:
            world(seed).run()
        except Violation:
            return True
    return False
