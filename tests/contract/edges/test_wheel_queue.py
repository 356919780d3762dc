"""The part of the protocols that all brokers share: the wheel queue, its readers, and the end of an epoch."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from celery_wheel.engine.port import Peeked
from celery_wheel.errors import BrokerError, WheelError
from celery_wheel.store.model import Message, Unreadable
from tests.kit.chunks import BIG, EPOCH, SHARD, raw
from tests.kit.patience import patience, wait_until


def adopted(peer: Any, epoch: int = EPOCH) -> Any:
    edge = peer.edge()
    edge.adopt(SHARD, epoch)
    return edge


def peek(edge: Any, at_least: int, max_count: int = 1_000, max_bytes: int = BIG) -> Peeked:
    found: list[Peeked] = []

    def there() -> bool:
        found.append(edge.peek(SHARD, max_count, max_bytes))
        return len(found[-1].arrivals) >= at_least

    wait_until(there, f"{at_least} messages")
    return found[-1]


def names(peeked: Peeked) -> list[str]:
    return [one.task_id if isinstance(one, Message) else "?" for one in peeked.arrivals]


def tasks(*numbers: int) -> list[str]:
    return [f"task-{number}" for number in numbers]


def produce(peer: Any, *numbers: int) -> None:
    for number in numbers:
        peer.produce(number)


def check_depth(edge: Any, depth: int) -> None:
    """A quorum queue tells its depth a moment later."""
    wait_until(lambda: edge.depth(SHARD) == depth, f"the depth is {depth}")


def test_the_oldest_come_first_again_and_again_until_they_are_trimmed(peer: Any) -> None:
    edge = adopted(peer)
    found = edge.peek(SHARD, 10, BIG)
    assert (found.arrivals, found.more) == ([], False)
    assert edge.trim(SHARD, EPOCH, found.token)
    produce(peer, 1, 2, 3, 4, 5)
    for _ in range(2):
        assert names(peek(edge, 5)) == tasks(1, 2, 3, 4, 5)
    first = peek(edge, 3, max_count=3)
    assert names(first) == tasks(1, 2, 3)
    assert first.more
    assert edge.trim(SHARD, EPOCH, first.token)
    rest = peek(edge, 2)
    assert names(rest) == tasks(4, 5)
    produce(peer, 6)
    assert edge.trim(SHARD, EPOCH, rest.token)
    late = peek(edge, 1)
    assert names(late) == tasks(6), "a message that arrives after the peek stays"
    assert edge.trim(SHARD, EPOCH, late.token)
    assert edge.peek(SHARD, 10, BIG).arrivals == []
    check_depth(edge, 0)


@pytest.mark.parametrize(("max_bytes", "expected"), [(1, 1), (10_000, 4)])
def test_bytes_are_bounded_but_one_message_always_comes(peer: Any, max_bytes: int, expected: int) -> None:
    produce(peer, 1, 2, 3, 4)
    assert names(peek(adopted(peer), expected, max_bytes=max_bytes)) == tasks(*range(1, expected + 1))


def test_an_edge_says_whether_it_can_wait_and_does_not_wait_where_it_cannot(peer: Any) -> None:
    edge = adopted(peer)
    assert edge.can_wait is peer.can_wait
    if not peer.can_wait:
        produce(peer, 1)
        assert edge.await_message(SHARD, 60_000) is False
        assert edge.can_wait is False


def test_an_edge_tells_of_messages_and_leaves_them_in_their_place(peer: Any) -> None:
    edge = adopted(peer)
    if not peer.can_wait:
        return
    produce(peer, 1, 2, 3)
    assert edge.await_message(SHARD, int(patience(30_000))) is True
    before = peek(edge, 3)
    assert edge.await_message(SHARD, 10) is True
    assert names(peek(edge, 3)) == tasks(1, 2, 3)
    assert edge.trim(SHARD, EPOCH, before.token), "the proof of an earlier peek is still valid"
    assert edge.await_message(SHARD, 10) is False


def test_a_wait_for_nothing_ends_after_its_time(peer: Any) -> None:
    edge = adopted(peer)
    began = time.monotonic()
    assert edge.await_message(SHARD, 200) is False
    assert not peer.blocks or time.monotonic() - began >= 0.2


@pytest.mark.parametrize("left", [False, True])
def test_nothing_is_awaited_without_an_epoch(peer: Any, left: bool) -> None:
    produce(peer, 1)
    edge = peer.edge()
    if left:
        edge.adopt(SHARD, EPOCH)
        edge.leave(SHARD, EPOCH)
    assert edge.await_message(SHARD, 60_000) is False


def test_a_message_ends_the_wait_for_it_and_no_other_call_waits(peer: Any) -> None:
    if not peer.blocks:
        return
    edge = adopted(peer)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(edge.await_message, SHARD, 600_000)
        began = time.monotonic()
        for _ in range(50):
            assert edge.peek(SHARD, 10, BIG).arrivals == []
            edge.now_ms()
            edge.keep_alive()
        assert time.monotonic() - began < patience(30)
        assert not waiting.done()
        produce(peer, 1)
        assert waiting.result(patience(30)) is True
    found = peek(edge, 1)
    assert names(found) == tasks(1)
    assert edge.trim(SHARD, EPOCH, found.token)


def test_a_wait_goes_on_after_its_connection_has_ended(peer: Any) -> None:
    """The caller calls again after a failure, as the engine does, and needs no other call in between."""
    if not peer.can_wait:
        return
    edge = adopted(peer)
    failures: list[BrokerError] = []

    def wait() -> bool:
        while True:
            try:
                if edge.await_message(SHARD, 600_000):
                    return True
            except BrokerError as error:
                failures.append(error)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait) if peer.blocks else None  # a model serves one thread
        peer.cut(edge)
        produce(peer, 1)
        assert (waiting or pool.submit(wait)).result(patience(60)) is True
    assert len(failures) <= 1
    assert names(peek(edge, 1)) == tasks(1)


def test_a_token_trims_once(peer: Any) -> None:
    produce(peer, 1, 2, 3, 4)
    edge = adopted(peer)
    found = peek(edge, 2, max_count=2)
    assert edge.trim(SHARD, EPOCH, found.token)
    assert not edge.trim(SHARD, EPOCH, found.token)
    assert names(peek(edge, 2)) == tasks(3, 4)


def test_nothing_is_trimmed_where_the_head_is_another(peer: Any) -> None:
    produce(peer, 1, 2, 3)
    edge = adopted(peer)
    found = peek(edge, 2, max_count=2)
    peer.disturb(edge, EPOCH)
    before = names(peek(edge, 2))
    assert not edge.trim(SHARD, EPOCH, found.token)
    assert {*before} <= {*names(peek(edge, len(before)))}, "a third one may come later"


def test_bytes_that_are_no_message_stay_whole_and_the_rest_goes_on(peer: Any) -> None:
    peer.produce_bytes(b"\xff\x00 no message")
    produce(peer, 1)
    edge = adopted(peer)
    found = peek(edge, 2)
    bad, good = found.arrivals
    assert isinstance(bad, Unreadable)
    assert any(form in bad.raw for form in (b"\xff\x00 no message", b"/wAgbm8gbWVzc2FnZQ=="))
    assert bad.reason
    assert isinstance(good, Message)
    assert edge.trim(SHARD, EPOCH, found.token)
    check_depth(edge, 0)


def test_nothing_is_read_before_the_shard_is_adopted(peer: Any) -> None:
    produce(peer, 1)
    with pytest.raises(BrokerError, match=r"does not hold|given up|leave"):
        peer.edge().peek(SHARD, 10, BIG)


def test_a_shard_that_was_left_is_neither_read_nor_trimmed_until_it_is_adopted_anew(peer: Any) -> None:
    produce(peer, 1, 2)
    edge = adopted(peer)
    found = peek(edge, 2)
    for _ in range(2):
        edge.leave(SHARD, EPOCH)
    with pytest.raises(BrokerError, match=r"does not hold|given up|leave") as refused:
        edge.peek(SHARD, 10, BIG)
    assert "cannot be reached" not in str(refused.value)
    assert not edge.trim(SHARD, EPOCH, found.token)
    edge.adopt(SHARD, EPOCH + 1)
    assert sorted(names(peek(edge, 2))) == tasks(1, 2)


def test_the_next_holder_gets_the_messages_that_were_not_trimmed(peer: Any) -> None:
    produce(peer, 1, 2, 3, 4)
    edge = adopted(peer)
    assert edge.trim(SHARD, EPOCH, peek(edge, 2, max_count=2).token)
    peek(edge, 2)
    edge.leave(SHARD, EPOCH)
    found = names(peek(adopted(peer, EPOCH + 1), 2))
    assert (found if peer.keeps_order else sorted(found)) == tasks(3, 4)


def test_a_late_leave_does_not_undo_a_later_adoption(peer: Any) -> None:
    produce(peer, 1)
    edge = adopted(peer)
    edge.adopt(SHARD, EPOCH + 1)
    edge.leave(SHARD, EPOCH)
    assert names(peek(edge, 1)) == tasks(1)


def test_a_shard_that_was_never_adopted_may_be_left(peer: Any) -> None:
    edge = peer.edge()
    edge.leave(SHARD, EPOCH)
    edge.close()
    edge.close()


def test_a_shard_may_be_left_by_another_thread_while_it_is_read(peer: Any) -> None:
    produce(peer, *range(1, 101))
    edge = adopted(peer)
    faults: list[BaseException] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            try:
                edge.trim(SHARD, EPOCH, edge.peek(SHARD, 1, BIG).token)
            except WheelError:
                continue  # it was given up, or another epoch has it
            except BaseException as error:
                faults.append(error)
                return

    reading = threading.Thread(target=read)
    reading.start()
    for epoch in range(EPOCH, EPOCH + 10):
        edge.adopt(SHARD, epoch)
        edge.leave(SHARD, epoch)
    over.set()
    reading.join(patience(30))
    assert not reading.is_alive()
    assert faults == []


def test_depth_and_oldest_need_no_epoch_and_remove_nothing(peer: Any) -> None:
    looking = peer.edge()
    assert looking.oldest(SHARD) is None
    produce(peer, 1, 2, 3)
    for _ in range(2):
        check_depth(looking, 3)
        found = looking.oldest(SHARD)
        assert (found.task_id if found else None) == ("task-1" if peer.shows_oldest else None)
    assert names(peek(adopted(peer), 3)) == tasks(1, 2, 3)


def test_a_missing_queue_is_empty(peer: Any) -> None:
    edge = peer.edge()
    if peer.reads_raw and len({edge, peer.edge()}) == 2:  # the models and MemoryBroker have one shard
        assert (edge.depth(SHARD + 1), edge.oldest(SHARD + 1)) == (0, None)


def test_raw_messages_are_read_by_the_rules_of_the_installation(peer: Any) -> None:
    if not peer.reads_raw:
        return
    edge = peer.edge()
    good, bad = edge.decode(raw(1)), edge.decode(b"no message")
    assert isinstance(good, Message)
    assert good.task_id == "task-1"
    assert isinstance(bad, Unreadable)
    assert bad.raw == b"no message"
    for parts in ({"routing_key": "wheel.0"}, {"exchange": "celery.pidbox", "exchange_type": "fanout"}):
        own = edge.decode(raw(1, queue=None, **parts))
        assert isinstance(own, Unreadable)
        assert "one of the wheel, of Celery or of kombu" in own.reason


def test_the_clock_is_a_number_or_none(peer: Any) -> None:
    now_ms = adopted(peer).now_ms()
    assert now_ms is None or now_ms > 0
