"""Schedulers that say that they are there, and who holds which shard."""

from __future__ import annotations

from collections.abc import Callable

from celery_wheel.store.ports import Store
from tests.stores.samples import LEASE, NOW


def test_those_who_were_heard_of_are_listed_in_order(make_store: Callable[[], Store]) -> None:
    one, other = make_store(), make_store()
    assert one.attend("host-b/2", NOW, 1_500) == ["host-b/2"]
    assert other.attend("host-a/1", NOW + 100, 1_500) == ["host-a/1", "host-b/2"]


def test_who_was_silent_does_not_count_until_it_is_heard_again(store: Store) -> None:
    store.attend("a", NOW, 1_500)
    assert store.attend("b", NOW + 1_500, 1_500) == ["b"]
    assert store.attend("a", NOW + 1_600, 1_500) == ["a", "b"]


def test_who_departs_is_gone_at_once(store: Store) -> None:
    store.attend("a", NOW, 1_500)
    store.depart("a")
    store.depart("nobody")
    assert store.attend("b", NOW, 1_500) == ["b"]


def test_every_shard_has_its_holder(make_store: Callable[[], Store]) -> None:
    store = make_store()
    assert set(store.holders().values()) <= {None}
    store.acquire(0, "host-a", NOW, LEASE)
    assert store.holders()[0] == "host-a"
    store.release(0, 1)
    assert store.holders()[0] is None
