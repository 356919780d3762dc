"""The store lists the schedulers with a sign of life, and the holders of shards."""

from __future__ import annotations

from collections.abc import Callable

from celery_wheel.store.ports import Store
from tests.kit.holder import LEASE, NOW


def test_live_schedulers_are_listed_in_order(make_store: Callable[[], Store]) -> None:
    one, other = make_store(), make_store()
    assert one.register_scheduler("host-b/2", NOW, 1_500) == ["host-b/2"]
    assert other.register_scheduler("host-a/1", NOW + 100, 1_500) == ["host-a/1", "host-b/2"]


def test_a_silent_scheduler_does_not_count_until_its_next_sign_of_life(store: Store) -> None:
    store.register_scheduler("a", NOW, 1_500)
    assert store.register_scheduler("b", NOW + 1_500, 1_500) == ["b"]
    assert store.register_scheduler("a", NOW + 1_600, 1_500) == ["a", "b"]


def test_an_unregistered_scheduler_is_gone_at_once(store: Store) -> None:
    store.register_scheduler("a", NOW, 1_500)
    store.unregister_scheduler("a")
    store.unregister_scheduler("nobody")
    assert store.register_scheduler("b", NOW, 1_500) == ["b"]


def test_every_shard_has_its_holder(make_store: Callable[[], Store]) -> None:
    store = make_store()
    assert set(store.holders().values()) <= {None}
    store.acquire(0, "host-a", NOW, LEASE)
    assert store.holders()[0] == "host-a"
    store.release(0, 1)
    assert store.holders()[0] is None
