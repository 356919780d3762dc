"""Brokers that keep offsets: every result of a publish, adoption, fencing, and the proof that nothing was lost."""

from collections.abc import Callable
from typing import Any

import pytest

from celery_wheel.engine.port import BrokerOffset, ConfirmedChunk, Published, PublishResult
from celery_wheel.errors import Fenced, OffsetLost, StoreConflict
from celery_wheel.store.model import ORIGIN
from celery_wheel.testing.engine import MemoryBroker
from tests.kit.chunks import BIG, BROKEN, EPOCH, SHARD, at, make_checksum, make_chunk, make_row


def adopted(peer: Any, *lanes: int) -> Any:
    edge = peer.edge()
    assert edge.fences is True
    edge.adopt(SHARD, EPOCH)
    for lane in lanes or (0,):
        edge.set_offset(SHARD, EPOCH, lane, ORIGIN)
    return edge


def test_chunks_are_published_in_order_and_the_offset_moves(fencing: Any) -> None:
    assert fencing.edge().adopt(SHARD, EPOCH) == {}
    edge = adopted(fencing)
    assert edge.publish(make_chunk(0, 3)) == Published(PublishResult.PUBLISHED)
    assert edge.publish(make_chunk(3, 5, number=2)) == Published(PublishResult.PUBLISHED)
    assert fencing.dispatched() == [1, 2, 3, 4, 5]
    assert edge.adopt(SHARD, EPOCH) == {0: BrokerOffset(at(5))}
    assert edge.publish(make_chunk(5, 9, [], number=3)).result is PublishResult.PUBLISHED
    assert edge.adopt(SHARD, EPOCH)[0].offset == at(9), "an empty chunk moves the offset alone"


def test_a_repeated_chunk_is_published_once(fencing: Any) -> None:
    edge = adopted(fencing)
    edge.publish(make_chunk(0, 2))
    assert edge.publish(make_chunk(0, 2)) == Published(PublishResult.ALREADY)
    edge.publish(make_chunk(2, 3, number=2))
    assert edge.publish(make_chunk(0, 2)) == Published(PublishResult.ALREADY)
    assert fencing.dispatched() == [1, 2, 3]


@pytest.mark.parametrize("base", [2**31, 2**53, 2**63 - 10], ids=["2^31", "2^53", "2^63"])
def test_neighbours_among_large_numbers_are_told_apart(fencing: Any, base: int) -> None:
    """Doubles, which Lua has, are exact up to 2^53: there 2^53 + 1 is 2^53."""
    edge = fencing.edge()
    edge.adopt(SHARD, base)
    edge.set_offset(SHARD, base, 0, at(base))
    own = {"epoch": base, "number": base}
    assert edge.publish(make_chunk(base + 1, base + 2, **own)) == Published(PublishResult.ROLLED_BACK)
    assert edge.publish(make_chunk(base, base + 1, **own)) == Published(PublishResult.PUBLISHED)
    assert edge.publish(make_chunk(base, base + 1, **own)) == Published(PublishResult.ALREADY)
    assert edge.publish(make_chunk(base + 1, base + 2, epoch=base, number=base + 1)).result is PublishResult.PUBLISHED
    edge.verify(SHARD, base, base + 1)
    with pytest.raises(OffsetLost):
        edge.verify(SHARD, base, base + 2)
    assert fencing.dispatched() == [base + 1, base + 2]
    assert fencing.edge().adopt(SHARD, base + 1) == {0: BrokerOffset(at(base + 2))}
    with pytest.raises(Fenced):
        edge.set_offset(SHARD, base, 0, at(base))


@pytest.mark.parametrize(("offset", "after", "upto"), [(0, 5, 6), (5, 3, 9)], ids=["before it", "inside it"])
def test_an_offset_before_or_inside_the_chunk_is_a_rollback(fencing: Any, offset: int, after: int, upto: int) -> None:
    edge = adopted(fencing)
    edge.set_offset(SHARD, EPOCH, 0, at(offset))
    assert edge.publish(make_chunk(after, upto)) == Published(PublishResult.ROLLED_BACK)
    assert fencing.dispatched() == []
    assert edge.adopt(SHARD, EPOCH)[0].offset == at(offset)


def test_an_unknown_lane_or_epoch_is_missing(fencing: Any) -> None:
    edge = adopted(fencing)
    assert edge.publish(make_chunk(0, 1, lane=1)) == Published(PublishResult.MISSING)
    assert edge.publish(make_chunk(0, 1, epoch=EPOCH + 1)) == Published(PublishResult.MISSING)
    assert fencing.dispatched() == []


CALLS: dict[str, Callable[[Any], object]] = {
    "adopt": lambda edge: edge.adopt(SHARD, EPOCH),
    "set_offset": lambda edge: edge.set_offset(SHARD, EPOCH, 0, at(9)),
    "drop_lanes": lambda edge: edge.drop_lanes(SHARD, EPOCH, [0]),
    "verify": lambda edge: edge.verify(SHARD, EPOCH, 0),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_newer_epoch_fences(fencing: Any, call: str) -> None:
    edge = adopted(fencing)
    fencing.produce(1)
    token = edge.peek(SHARD, 1, BIG).token
    fencing.edge().adopt(SHARD, EPOCH + 1)
    with pytest.raises(Fenced):
        CALLS[call](edge)
    with pytest.raises(Fenced):
        edge.trim(SHARD, EPOCH, token)
    assert edge.publish(make_chunk(0, 1)) == Published(PublishResult.FENCED)
    assert fencing.dispatched() == []
    assert fencing.edge().adopt(SHARD, EPOCH + 1) == {0: BrokerOffset(ORIGIN)}
    assert edge.depth(SHARD) == 1


@pytest.mark.parametrize("call", ["set_offset", "drop_lanes", "verify"])
def test_an_epoch_that_the_broker_does_not_know_must_adopt_anew(fencing: Any, call: str) -> None:
    edge = fencing.edge()
    fencing.edge().adopt(SHARD, EPOCH - 1)
    with pytest.raises(OffsetLost):
        CALLS[call](edge)


def test_offsets_may_be_set_back_and_forth(fencing: Any) -> None:
    edge = adopted(fencing)
    for number in (9, 3):
        edge.set_offset(SHARD, EPOCH, 0, at(number))
    assert edge.publish(make_chunk(3, 4)).result is PublishResult.PUBLISHED


def test_lanes_have_offsets_of_their_own_and_closed_ones_are_forgotten(fencing: Any) -> None:
    edge = adopted(fencing, 0, 1, 2)
    edge.publish(make_chunk(0, 1, [make_row(1)], lane=1, checksum=make_checksum(1)))
    edge.drop_lanes(SHARD, EPOCH, [1, 2, 77])
    assert edge.adopt(SHARD, EPOCH) == {0: BrokerOffset(ORIGIN)}
    assert edge.publish(make_chunk(1, 2, lane=1)).result is PublishResult.MISSING
    edge.set_offset(SHARD, EPOCH, 1, at(1))
    assert edge.publish(make_chunk(1, 2, lane=1, number=2)).result is PublishResult.PUBLISHED
    edge.drop_lanes(SHARD, EPOCH, [])


def test_a_row_that_no_queue_accepts_is_reported_in_every_answer(fencing: Any) -> None:
    edge = adopted(fencing)
    rows = [make_row(1), fencing.broken_row(2), make_row(3)]
    published = edge.publish(make_chunk(0, 3, rows))
    assert published.result is PublishResult.PUBLISHED
    assert published.failed.keys() == {2}
    assert fencing.dispatched() == [1, 3]
    assert edge.publish(make_chunk(0, 3, rows)) == Published(PublishResult.ALREADY, published.failed)
    assert edge.adopt(SHARD, EPOCH) == {0: BrokerOffset(at(3), published.failed)}
    edge.publish(make_chunk(3, 4, number=2))
    assert edge.adopt(SHARD, EPOCH) == {0: BrokerOffset(at(4))}


def test_a_publication_counts_the_messages_of_queues(fencing: Any) -> None:
    edge = adopted(fencing)
    rows = [make_row(1), make_row(2, "news"), fencing.broken_row(3), make_row(4)]
    published = edge.publish(make_chunk(0, 4, rows, queues=["mail", "empty", BROKEN]))
    assert published.ready == edge.ready(["mail", "empty", BROKEN])
    mail = published.ready["mail"]
    assert published.ready == {"mail": mail, "empty": 0, BROKEN: 0}
    assert mail == (0 if isinstance(edge, MemoryBroker) else 2), "a test's worker takes each message at once"
    again = make_chunk(0, 4, rows, queues=["mail"])
    assert edge.publish(again) == Published(PublishResult.ALREADY, published.failed), "nothing is counted"
    prioritised = make_chunk(4, 5, [make_row(5, priority=6)], number=2, queues=["mail"])
    assert edge.publish(prioritised).ready == {"mail": mail and 3}


def test_setting_the_offset_forgets_the_failures_and_the_checksum(fencing: Any) -> None:
    edge = adopted(fencing)
    edge.publish(make_chunk(0, 1, [fencing.broken_row(1)], checksum=make_checksum(0)))
    edge.set_offset(SHARD, EPOCH, 0, at(1))
    assert edge.adopt(SHARD, EPOCH) == {0: BrokerOffset(at(1))}


def test_the_checksum_is_kept_beside_the_offset(fencing: Any) -> None:
    edge = adopted(fencing)
    edge.publish(make_chunk(0, 2, checksum=make_checksum(0)))
    assert edge.adopt(SHARD, EPOCH)[0].checksum == make_checksum(0)
    edge.publish(make_chunk(0, 2, checksum=make_checksum(1)))
    assert edge.adopt(SHARD, EPOCH)[0].checksum == make_checksum(0), "a repetition changes nothing"


def test_the_last_chunk_is_the_confirmed_one_or_a_later_one(fencing: Any) -> None:
    edge = adopted(fencing)
    edge.verify(SHARD, EPOCH, 0)
    edge.publish(make_chunk(0, 1, number=1))
    edge.publish(make_chunk(1, 2, number=2))
    for confirmed in (2, 1, 0):
        edge.verify(SHARD, EPOCH, confirmed)
    with pytest.raises(OffsetLost):
        edge.verify(SHARD, EPOCH, 3)


def test_no_chunk_follows_a_confirmed_one_that_was_lost_with_another_lane(fencing: Any) -> None:
    edge = adopted(fencing, 0, 1)
    edge.publish(make_chunk(0, 1, number=1))
    lost = make_chunk(0, 1, [make_row(9)], lane=1, number=2)
    later = make_chunk(1, 2, number=3, confirmed=lost.number)
    assert edge.publish(later) == Published(PublishResult.MISSING), "the last one would be 3, and hide the loss of 2"
    assert fencing.dispatched() == [1]
    with pytest.raises(OffsetLost):
        edge.verify(SHARD, EPOCH, 2)
    edge.publish(lost)
    assert edge.publish(later).result is PublishResult.PUBLISHED


def test_a_repeated_chunk_of_another_lane_does_not_set_the_last_one_back(fencing: Any) -> None:
    edge = adopted(fencing, 0, 1)
    edge.publish(make_chunk(0, 1, number=2))
    edge.publish(make_chunk(0, 1, lane=1, number=1))
    edge.verify(SHARD, EPOCH, 2)


def test_several_shards_are_verified_by_one_call(fencing: Any) -> None:
    if not hasattr(fencing, "other_store"):
        return  # a test has one shard
    edge = adopted(fencing)
    edge.publish(make_chunk(0, 1, number=1))
    edge.verify(SHARD, EPOCH, 1)
    assert edge.verified([ConfirmedChunk(SHARD, EPOCH, 1)]) == {SHARD}
    lost, older, unknown = (SHARD, EPOCH, 2), (SHARD, EPOCH - 1, 0), (SHARD, EPOCH + 1, 0)
    for other in (lost, older, unknown):
        assert edge.verified([ConfirmedChunk(*other)]) == set()


def test_chunk_numbers_begin_anew_with_a_newer_epoch_and_go_on_within_an_epoch(fencing: Any) -> None:
    edge = adopted(fencing)
    edge.publish(make_chunk(0, 1, number=12))
    edge.adopt(SHARD, EPOCH)
    edge.verify(SHARD, EPOCH, 12)
    edge.adopt(SHARD, EPOCH + 1)
    edge.verify(SHARD, EPOCH + 1, 0)
    edge.publish(make_chunk(1, 2, number=1, epoch=EPOCH + 1))
    edge.verify(SHARD, EPOCH + 1, 1)


def test_another_stores_offsets_are_never_adopted(fencing: Any) -> None:
    if not hasattr(fencing, "other_store"):
        return  # a test has one store
    edge = adopted(fencing)
    edge.set_offset(SHARD, EPOCH, 0, at(5))
    for epoch in (EPOCH - 1, EPOCH, EPOCH + 1):
        with pytest.raises(StoreConflict):
            fencing.other_store().adopt(SHARD, epoch)
    edge.verify(SHARD, EPOCH, 0)
    assert edge.adopt(SHARD, EPOCH) == {0: BrokerOffset(at(5))}


def test_the_highest_number_of_accepted_messages_is_kept(fencing: Any) -> None:
    edge = adopted(fencing)
    assert edge.accepted(SHARD) == 0
    edge.verify(SHARD, EPOCH, 0, 5)
    fencing.produce(1)
    assert edge.trim(SHARD, EPOCH, edge.peek(SHARD, 1, BIG).token, 10)
    edge.verify(SHARD, EPOCH, 0, 7)
    assert edge.accepted(SHARD) == 10, "a call that comes late lowers nothing"
    assert not edge.trim(SHARD, EPOCH, peeked_and_gone(fencing, edge), 12)
    assert edge.accepted(SHARD) == 10, "the messages may be in the queue yet"
    assert edge.verified([ConfirmedChunk(SHARD, EPOCH, 0, 11)]) <= {SHARD}
    edge.verify(SHARD, EPOCH, 0, 11)
    successor = fencing.edge()
    successor.adopt(SHARD, EPOCH + 1)
    assert successor.accepted(SHARD) == 11
    successor.set_accepted(SHARD, EPOCH + 1, 4)
    assert successor.accepted(SHARD) == 4
    for late in (lambda: edge.verify(SHARD, EPOCH, 0, 20), lambda: edge.set_accepted(SHARD, EPOCH, 20)):
        with pytest.raises(Fenced):
            late()
    assert successor.accepted(SHARD) == 4


def peeked_and_gone(fencing: Any, edge: Any) -> object:
    """Return the token of a message that another call has removed since."""
    fencing.produce(2)
    token: object = edge.peek(SHARD, 1, BIG).token
    assert edge.trim(SHARD, EPOCH, token, 10)
    return token
