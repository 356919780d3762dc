"""The base of the edges that push: a thread that leaves a shard clears no deliveries that another thread peeks."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

import pytest

from celery_wheel.broker.deliveries import Deliveries
from celery_wheel.errors import BrokerError
from tests.kit.patience import patience


class TwoDeliveries(Deliveries):
    """Two messages; reading the first body lets another thread leave the shard."""

    def __init__(self) -> None:
        super().__init__(0, threading.RLock())
        self.leaving = threading.Thread(target=self.leave, args=(1,))
        self.calls: list[str] = []

    def _using(self, doing: str) -> AbstractContextManager[None]:
        return self._lock  # type: ignore[return-value]

    @property
    def _is_up(self) -> bool:
        return True

    def _consume(self) -> None:
        self._unacknowledged.extend([Message(self), Message(self)])

    def _read(self, max_count: int, max_bytes: int) -> bool:
        return False

    def _acknowledge(self, count: int) -> None:
        self.calls.append(f"acknowledge {count}")

    def _disconnect(self) -> None:
        self.calls.append(f"disconnect with {len(self._unacknowledged)}")


class Message:
    def __init__(self, owner: TwoDeliveries) -> None:
        self._owner = owner

    @property
    def body(self) -> bytes:
        if self._owner.leaving.ident is None:
            self._owner.leaving.start()
            self._owner.leaving.join(0.3)  # it waits for the lock
        return b"body"


def test_leaving_a_shard_waits_for_a_peek_to_end() -> None:
    """Otherwise the deque changes during the iteration: a RuntimeError, which ends the thread and the process."""
    deliveries = TwoDeliveries()
    deliveries.adopt(1)
    found, token, more = deliveries.peek(10, 1_000)
    deliveries.leaving.join(patience(30))
    assert (len(found), token.size, more) == (2, 2, False)
    assert deliveries.calls == ["disconnect with 0", "disconnect with 2"]
    assert not deliveries.trim(token)
    with pytest.raises(BrokerError, match="does not hold shard 0"):
        deliveries.peek(10, 1_000)
