from __future__ import annotations

import threading

from celery_wheel.store.turns import Turns
from tests.servers import wait_until


def test_waiters_get_it_in_the_order_they_came() -> None:
    turns, order = Turns(), list[int]()

    def take(n: int) -> None:
        with turns:
            order.append(n)

    threads = [threading.Thread(target=take, args=(n,)) for n in range(8)]
    with turns:
        for n, thread in enumerate(threads):
            thread.start()
            wait_until(lambda n=n: len(turns._waiting) > n, "a thread that waits")  # type: ignore[misc]
        assert order == []
    for thread in threads:
        thread.join()
    assert order == list(range(8))


def test_it_is_free_again_after_an_error() -> None:
    turns = Turns()
    try:
        with turns:
            raise ValueError
    except ValueError:
        pass
    with turns:
        pass


def test_one_at_a_time() -> None:
    turns, inside, most = Turns(), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(500):
            with turns:
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (inside, most) == (0, 1)
