"""The base of the edges that deliver: what one thread peeks, another does not clear away."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

import pytest

from celery_wheel.broker.deliveries import Deliveries
from celery_wheel.errors import BrokerError


class Given(Deliveries):
    """Two messages; to look at the first one lets another thread give the shard up."""

    def __init__(self) -> None:
        super().__init__(threading.RLock())
        self.leaving = threading.Thread(target=self.leave, args=(1,))
        self.calls: list[str] = []

    def _using(self, doing: str) -> AbstractContextManager[None]:
        return self._lock  # type: ignore[return-value]

    @property
    def _is_up(self) -> bool:
        return True

    def _consume(self) -> None:
        self._held.extend([Message(self), Message(self)])

    def _read(self, max_count: int, max_bytes: int) -> bool:
        return False

    def _acknowledge(self, count: int) -> None:
        self.calls.append(f"acknowledge {count}")

    def _give_back(self) -> None:
        self.calls.append(f"give back {len(self._held)}")


class Message:
    def __init__(self, of: Given) -> None:
        self._of = of

    @property
    def body(self) -> bytes:
        if self._of.leaving.ident is None:
            self._of.leaving.start()
            self._of.leaving.join(0.3)  # as far as it gets
        return b"body"


def test_a_shard_that_is_left_in_the_middle_of_a_peek_is_left_after_it() -> None:
    """Else the deque changes while it is iterated: a RuntimeError, which ends the thread and the process."""
    given = Given()
    given.adopt(1)
    found, token, more = given.peek(10, 1_000)
    given.leaving.join(30)
    assert (len(found), token.size, more) == (2, 2, False)
    assert given.calls == ["give back 0", "give back 2"]
    assert not given.trim(token)
    with pytest.raises(BrokerError, match="given up"):
        given.peek(10, 1_000)
