"""The reader of Redis' replies: every reply in every portion is read, and of a far too large item two ends are held."""

import socket
import tracemalloc
from collections.abc import Iterable
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, NoScriptError, ReadOnlyError, ResponseError

from celery_wheel.broker.redis.replies import END, Cut, ReplyReader

MOST = 2 * END

replies = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary() | st.just(b"$3\r\nabc\r\n"),
    lambda inner: st.lists(inner, max_size=5),
)


class Portions:
    """A socket that gives its bytes in portions of these sizes, of which the last repeats."""

    def __init__(self, data: bytes, sizes: Iterable[int] = (2**16,)) -> None:
        self._data, self._at, self._sizes = data, 0, list(sizes)

    def recv(self, most: int) -> bytes:
        size = min(most, self._sizes.pop(0) if len(self._sizes) > 1 else self._sizes[0])
        self._at += size
        return self._data[self._at - size : self._at]


def reader(sock: Any, max_item: int = 0) -> Any:
    found = ReplyReader(max_item, 2**16)
    found.on_connect(SimpleNamespace(_sock=sock))
    return found


def encode(reply: Any) -> bytes:
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    return b"*%d\r\n%b" % (len(reply), b"".join(map(encode, reply)))


@pytest.mark.slow
@given(st.lists(replies, min_size=1, max_size=5), st.lists(st.integers(1, 40), min_size=1))
def test_replies_are_read_one_by_one_whatever_the_portions(sent: list[Any], sizes: list[int]) -> None:
    under_test = reader(Portions(b"".join(map(encode, sent)), sizes))
    assert [under_test.read_response() for _ in sent] == sent


@pytest.mark.slow
@given(st.integers(MOST - 2, MOST + 200_000), st.lists(st.integers(1, 2**16), min_size=1, max_size=9))
def test_a_far_too_large_item_is_its_two_ends_and_its_size(size: int, sizes: list[int]) -> None:
    item = b"".join(b"%07d." % n for n in range(size // 8 + 1))[:size]
    sent = [b"before", item, b"", item, b"after"]
    under_test = reader(Portions(encode(sent) + b"+OK\r\n", [*sizes, 2**16]))
    found = under_test.read_response()
    assert under_test.read_response() == b"OK"
    assert [found[0], found[2], found[4]] == [b"before", b"", b"after"]
    for one in (found[1], found[3]):
        if size <= MOST:
            assert one == item
        else:
            assert type(one) is Cut
            assert (one, one.size, one.end) == (item[:END], size, item[-END:])


def test_memory_does_not_grow_with_the_item() -> None:
    size = 200_000_000
    portions = chain([b"$%d\r\n" % size], repeat(b"x" * 2**16))
    tracemalloc.start()
    found = reader(SimpleNamespace(recv=lambda most: next(portions))).read_response()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.size, len(found)) == (size, END)
    assert peak < 2_000_000


@pytest.mark.parametrize(
    ("sent", "kind", "text"),
    [
        (b"-NOSCRIPT No matching script.\r\n", NoScriptError, "No matching"),
        (b"-READONLY You can't write.\r\n", ReadOnlyError, "You can't"),
        (b"-WRONGTYPE of \xff\r\n", ResponseError, "WRONGTYPE of"),
    ],
)
def test_an_error_is_returned_as_redis_py_knows_it(sent: bytes, kind: type[Exception], text: str) -> None:
    found = reader(Portions(b"*2\r\n" + sent + b":1\r\n")).read_response()
    assert isinstance(found[0], kind)
    assert text in str(found[0])
    assert found[1] == 1


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (b"-LOADING Redis is loading the dataset in memory\r\n", RedisConnectionError),
        (b"$10\r\nabc", RedisConnectionError),
        (b"$1000000\r\nabc", RedisConnectionError),
        (b"", RedisConnectionError),
        (b"HTTP/1.1 400 Bad Request\r\n", InvalidResponse),
    ],
    ids=["loading", "cut off in an item", "cut off in a large item", "closed", "another protocol"],
)
def test_a_connection_that_cannot_go_on_raises(sent: bytes, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        reader(Portions(sent)).read_response()


def test_a_reply_or_the_end_of_the_connection_can_be_read() -> None:
    ours, theirs = socket.socketpair()
    under_test = reader(ours)
    assert not under_test.can_read()
    theirs.sendall(b"+OK\r\n+OK\r\n")
    assert under_test.can_read(timeout=1)
    assert under_test.read_response() == b"OK"
    assert under_test.can_read(), "the second one is in memory"
    assert under_test.read_response() == b"OK"
    assert not under_test.can_read()
    theirs.close()
    assert under_test.can_read(timeout=1)
    under_test.on_disconnect()
    ours.close()
