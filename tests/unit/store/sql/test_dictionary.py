"""Messages are packed by a dictionary and come back byte for byte; a store learns a better one from its messages."""

from __future__ import annotations

import json
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_wheel.store.model import PLAIN, Parts, join, split
from celery_wheel.store.sql.catalogue import FIRST_LOOK, LOOK_FACTOR, SKELETON, Dictionary, Learner

FIRST = Dictionary(1, SKELETON)


def plain(number: int) -> bytes:
    id_ = str(UUID(int=Random(number).getrandbits(128)))
    headers = {"lang": "py", "task": "shop.mail.tasks.remind", "id": id_, "root_id": id_, "argsrepr": f"({number},)"}
    properties = {"content_type": "application/json", "correlation_id": id_, "delivery_mode": 2}
    body = json.dumps([[number], {"address": f"{number}@example.com"}, {"callbacks": None, "chord": None}])
    return join(json.dumps(headers).encode(), json.dumps(properties).encode(), body.encode())


#: Bytes that are no separator.
PART = st.binary().filter(lambda one: b"\x1e" not in one)


@given(PART, PART, st.binary())
def test_parts_come_back_as_they_were(headers: bytes, properties: bytes, body: bytes) -> None:
    whole = join(headers, properties, body)
    assert split(PLAIN.unpack(whole)) == Parts(headers, properties, body)
    [packed] = FIRST.pack([whole])
    assert FIRST.unpack(packed) == whole


@pytest.mark.parametrize("parts", [(b"\x1e", b"", b""), (b"", b"a\x1eb", b"")])
def test_parts_that_could_not_be_told_apart_are_refused(parts: tuple[bytes, bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="no control characters"):
        join(*parts)


def test_damaged_bytes_are_an_error_of_the_row() -> None:
    [packed] = FIRST.pack([plain(1)])
    with pytest.raises(ValueError, match="its bytes in the store are damaged"):
        FIRST.unpack(packed[:-3])


def test_the_first_dictionary_packs_a_message_to_a_quarter() -> None:
    [packed] = FIRST.pack([plain(1)])
    assert len(packed) < len(plain(1)) / 2


def test_a_dictionary_is_learned_from_the_first_thousand_messages_and_not_again_if_it_is_hardly_better() -> None:
    learner, last = Learner(), LOOK_FACTOR * FIRST_LOOK
    assert not learner.see([plain(n) for n in range(FIRST_LOOK - 1)])
    assert learner.see([plain(FIRST_LOOK)])
    content = learner.train(FIRST)
    assert content is not None
    learned, new = Dictionary(2, content), [plain(n) for n in range(10_000, 10_100)]
    assert sum(map(len, learned.pack(new))) < 0.7 * sum(map(len, FIRST.pack(new)))
    assert [learned.unpack(one) for one in learned.pack(new)] == new
    assert not learner.see([plain(n) for n in range(FIRST_LOOK, last - 1)])
    assert learner.see([plain(last)])
    assert learner.train(learned) is None


def test_messages_with_nothing_in_common_teach_nothing() -> None:
    learner = Learner()
    learner.see([b"\x1e\x1e"] * FIRST_LOOK)
    assert learner.train(FIRST) is None


def test_large_messages_are_sampled_by_their_beginning() -> None:
    learner = Learner()
    tracemalloc.start()
    try:
        for number in range(50):
            learner.see([plain(number) + b"%d" % number * 2**19])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2**20


def test_threads_pack_and_unpack_by_one_dictionary() -> None:
    def work(first: int) -> list[int]:
        numbers = range(first, first + 300)
        return [number for number in numbers if FIRST.unpack(*FIRST.pack([plain(number)])) != plain(number)]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(0, 4_000, 1_000))) == [[]] * 4
