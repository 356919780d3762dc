"""A fork and the threads that are inside SQLite."""

from __future__ import annotations

import threading

from celery_wheel.store.sqlite.threads import ForkGate
from tests.kit.patience import patience, wait_until


def test_a_fork_waits_for_threads_inside_and_later_threads_wait_for_the_fork() -> None:
    gate, leave, order = ForkGate(), threading.Event(), list[str]()

    def inside() -> None:
        with gate.entered():
            leave.wait(patience(30))
            with gate.entered():  # the thread is inside, and has to finish its work
                order.append("left")

    def late() -> None:
        with gate.entered():
            order.append("entered")

    first = threading.Thread(target=inside)
    first.start()
    wait_until(lambda: bool(gate._inside), "it is inside")
    forker = threading.Thread(target=lambda: (gate.before(), order.append("forked")))
    forker.start()
    wait_until(lambda: gate._forking is not None, "a fork waits")
    second = threading.Thread(target=late)
    second.start()
    leave.set()
    first.join(patience(30))
    forker.join(patience(30))
    assert order == ["left", "forked"]
    gate.after_in_parent()
    second.join(patience(30))
    assert order == ["left", "forked", "entered"]


def test_a_thread_that_forks_inside_its_own_transaction_does_not_wait_for_itself() -> None:
    gate = ForkGate()
    with gate.entered():
        gate.before()
        gate.after_in_child()
        with gate.entered():
            pass
    assert gate._inside == {}
