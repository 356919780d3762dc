"""The store whose holder was last in a shard of a broker.

::

    uuid differs        another store: its positions mean nothing here           claim-broker, where the broker can tell
    instance differs    a copy of this store, or this store at a new place:
      its holder lives    a copy                                                 refused
      same address        the store itself: restored, or after a restart         succeeded
      elsewhere           a copy, until a person says otherwise                  claim-store

``claim-store`` raises the store's epochs by ``EPOCH_LEAP``: a broker then knows it from the copy, whose epochs it has
passed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from celery_wheel.errors import StoreConflict

if TYPE_CHECKING:
    from celery_wheel.engine.port import Broker
    from celery_wheel.store.ports import StoreIdentity

#: A holder gives a sign of life twice a second. It has ended where it has not done so for this long.
OCCUPIED_MS = 5_000


class Owner(NamedTuple):
    """The store to which a shard belongs in the broker."""

    uuid: str
    place: str  #: for people
    silent_ms: int  #: time since its holder's last sign of life
    instance: str = ""  #: a copy of the store has another
    address: str = ""  #: a store that was restored keeps it
    refused: str = ""  #: the place of a copy that has just been refused

    def __str__(self) -> str:
        return f"{self.uuid} ({self.place or 'its place is unknown'})"

    @property
    def lives(self) -> bool:
        return self.silent_ms < OCCUPIED_MS

    def is_copy_of(self, store: StoreIdentity) -> bool:
        return self.uuid == store.uuid and self.instance != store.instance


def owner_of(broker: Broker, shard: int) -> Owner | None:
    """Return the owner of a shard; None where there is none, or where the broker cannot tell."""
    reader: Callable[[int], Owner | None] | None = getattr(broker, "owner", None)
    return None if reader is None else reader(shard)


def other_store(server: str, shard: int, owner: Owner, store: StoreIdentity) -> StoreConflict:
    return StoreConflict(
        f"shard {shard} in {server} belongs to another store, {owner}, and not to {store.uuid} ({store.place}); "
        "nothing was changed, and this scheduler dispatches nothing; schedulers on one broker must share one "
        "wheel_store (is it a relative path, and this another folder?), or each have a wheel_namespace of its own; if "
        "the other store is out of use, stop its schedulers and run: celery -A proj wheel claim-broker"
    )


def other_copy(server: str, shard: int, place: str, store: StoreIdentity) -> StoreConflict:
    return StoreConflict(
        f"shard {shard} in {server} is held by another copy of this store, {place}; this copy, {store.place}, holds "
        "nothing, and nothing was changed; remove the copy that is not to be used; if the store was moved here on "
        "purpose, stop the schedulers of the other and run: celery -A proj wheel claim-store"
    )
