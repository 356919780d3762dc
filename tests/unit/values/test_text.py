"""One rule for the texts that can be stored, at every entrance; masks hide values; ids increase and tell their time."""

import itertools
import json
import os
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_wheel.broker.envelope import Envelope, encode
from celery_wheel.bulk_load import reject_rules as rules
from celery_wheel.engine.intake.inbox import parse as parse_item
from celery_wheel.producer.options import parse as parse_options
from celery_wheel.store.model import InboxItem, Unreadable
from celery_wheel.values import ids
from celery_wheel.values.ids import dispatch_ids, dispatched_ms, uuid7
from celery_wheel.values.mask import MASKED, Mask
from celery_wheel.values.text import MAX_TEXT, MAX_TEXT_BYTES, check_text, text_rule, whole_number


class Name(StrEnum):
    GOOD = "good"
    BAD = "b\0d"


RULES: list[tuple[Any, str]] = [
    (5, "a text"),
    (None, "a text"),
    (b"x", "a text"),
    ("", "a text of 1 to 512 characters"),
    ("x" * 513, "a text of 1 to 512 characters"),
    ("a\0b", "without NUL characters"),
    (Name.BAD, "without NUL characters"),
    ("ü\0", "without NUL characters"),
    ("\ud800", "text that can be written as UTF-8"),
    ("日" * 342, "at most 1,024 bytes as UTF-8"),
]


@pytest.mark.parametrize(("value", "rule"), RULES)
def test_a_text_that_cannot_be_stored_is_refused_with_the_rule(value: Any, rule: str) -> None:
    assert text_rule(value) == rule
    with pytest.raises(ValueError, match=rf"^key must be {rule}, got "):
        check_text("key", value)


@pytest.mark.parametrize("value", ["x", "x" * 512, "日" * 341, "\x1f\n", Name.GOOD])
def test_any_other_text_is_accepted(value: str) -> None:
    assert check_text("key", value) is value
    assert text_rule(value) is None


def test_a_caller_may_allow_no_characters_or_any_number() -> None:
    assert check_text("exchange", "", 0) == ""
    assert check_text("reason", "", any_length=True) == ""
    assert check_text("reason", "ü" * 10_000, any_length=True)
    with pytest.raises(ValueError, match="reason must be without NUL"):
        check_text("reason", "a\0" * 10_000, any_length=True)


@pytest.mark.slow
@given(st.text(max_size=600))
def test_an_accepted_text_can_be_stored(value: str) -> None:
    """The fast path of ``check_text`` accepts the same texts as the rule."""
    try:
        stored = check_text("key", value).encode()
    except ValueError:
        assert text_rule(value) is not None
    else:
        assert text_rule(value) is None
        assert (0 < len(value) <= MAX_TEXT, len(stored) <= MAX_TEXT_BYTES, b"\0" in stored) == (True, True, False)


def in_an_envelope(value: Any) -> None:
    encode(Envelope("0" * 8 + "-0000" * 3 + "-" + "0" * 12, "t", value, 1, 1, "", "direct", "q"))


def in_a_row(value: Any) -> None:
    if why := rules.reason({"task": "t", "eta_ms": 1, "args": "[]", "task_id": value}):
        raise ValueError(why)


def in_a_request(value: Any) -> None:
    """The length of a task id that cannot exist does not matter."""
    item = InboxItem(1, "cancel", json.dumps({"task_ids": [value]}).encode())
    found = parse_item(item, lambda _: pytest.fail("it is no message"), lambda _: str(UUID(int=1)))
    if isinstance(found, list) and isinstance(found[0], Unreadable):
        raise ValueError(found[0].reason)


ENTRANCES: list[Callable[[Any], object]] = [in_an_envelope, in_a_row, lambda value: parse_options({"key": value})]


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize(("value", "rule"), [one for one in RULES if isinstance(one[0], str)])
def test_every_entrance_has_the_same_rule_for_a_text(entrance: Callable[[Any], object], value: str, rule: str) -> None:
    with pytest.raises(ValueError, match=rf"must be {rule}, got "):
        entrance(value)


@pytest.mark.parametrize("value", ["a\0b", "\ud800"])
def test_a_request_with_a_text_that_would_end_the_commit_is_unreadable(value: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be read: task_ids must be"):
        in_a_request(value)
    in_a_request("x" * 600)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("0", 0), ("17", 17), ("007", 7), ("0" * 5_000 + "1", 1), ("9" * 18, 10**18 - 1)),
        *((text, None) for text in ("", "-1", "+1", "1.0", " 1", "1_0", "²", "٣", "①", "1\n", "9" * 19, "9" * 5_000)),
    ],
)
def test_a_whole_number_has_the_digits_0_to_9(text: str, number: int | None) -> None:
    assert whole_number(text) == number


MASK = Mask(["password", "Api-Key"])
SECRET = "hunter2"  # noqa: S105 - a value that no page may show


@pytest.mark.parametrize(
    "raw",
    [
        '[[{"password": "hunter2"}], {}, {}]',
        '{"a": {"PASSWORD": {"old": "hunter2"}}, "b": [{"api-key": ["hunter2"]}]}',
        '{"a": {"password": "hunter2"}, "a": 1, "password": "hunter2", "password": 5}',
        '{"argsrepr": "({\'password\': \'hunter2\'},)", "kwargsrepr": "{\'password\': \'hunter2"}',
        '[[], {}, {"chain": [{"kwargs": {"password": "hunter2"}}]}]',
    ],
)
def test_json_of_any_depth_is_masked(raw: str) -> None:
    shown = MASK.part(raw.encode()).decode()
    assert SECRET not in shown
    assert MASKED in shown
    json.loads(shown)


def test_other_values_stay() -> None:
    assert json.loads(MASK.part(b'[[1, "a"], {"passwords": 2, "password": 3}, null]')) == [
        [1, "a"],
        {"passwords": 2, "password": MASKED},
        None,
    ]
    assert json.loads(MASK.part(b"{\"kwargsrepr\": \"{'password': 1, 'user': 7}\"}")) == {
        "kwargsrepr": f"{{'password': '{MASKED}', 'user': 7}}"
    }


def test_bytes_that_are_no_json_are_not_shown() -> None:
    assert MASK.part(b"\x80\x05password hunter2") == (
        b"(18 bytes that are no JSON: wheel_mask cannot hide a value in them)"
    )
    assert SECRET.encode() not in MASK.part(b"[" * 100_000 + b'{"password": "hunter2"}')


@pytest.mark.parametrize(
    "text",
    [
        "kwargs.password must be a text, got 'hunter2'",
        "got {'user': 7, 'password': 'hun\\'ter2 hunter2', 'a': 1}",
        'got {"password": ["hunter2"], "a": 1}',
        "password=hunter2",
        "password: b'hunter2",
        "the API-KEY is wrong, got hunter2",
        r"""args must be a list, got '"{\\"password\\": \\"hunter2\\"}"'""",
        r"""it cannot be read: ValueError('got {\'password\': \'hunter2\'}')""",
    ],
)
def test_an_error_quotes_no_masked_value(text: str) -> None:
    assert SECRET not in MASK.text(text)
    assert MASKED in MASK.text(text)


def test_an_error_keeps_its_other_words() -> None:
    assert MASK.text("got {'password': 5, 'user': 7}; the passwords got 8") == (
        f"got {{'password': {MASKED}, 'user': 7}}; the passwords got 8"
    )


def test_a_mask_without_names_changes_nothing() -> None:
    nothing, text = Mask(), "password: hunter2"
    assert (nothing.text(text), nothing.part(b"\x80"), nothing.value({"a": 1})) == (text, b"\x80", {"a": 1})
    assert not nothing


def test_a_user_who_saves_a_mask_keeps_the_value() -> None:
    old = {"password": SECRET, "list": [{"password": "one"}, {"password": "two"}], "user": 7}
    assert MASK.restored({**MASK.value(old), "user": 8}, old) == {**old, "user": 8}
    assert MASK.restored({"user": MASKED}, old) == {"user": MASKED}  # the name is not masked


@pytest.mark.parametrize(
    ("new", "says"),
    [
        ({"password": MASKED}, "password must be a value"),
        ({"list": [{"password": MASKED}]}, "list[0].password must be a value"),  # one of two was removed
    ],
)
def test_a_mask_without_a_former_value_is_refused(new: object, says: str) -> None:
    with pytest.raises(ValueError, match="must be a value") as error:
        MASK.restored(new, {"list": [{"password": "one"}, {"password": "two"}]})
    assert says in str(error.value)


def test_an_id_is_a_uuid_of_version_7_with_the_time_of_its_making(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_last_ms", 0)  # an earlier test may have set the clock ahead
    before = time.time_ns() // 1_000_000
    text = uuid7()
    value = UUID(text)
    assert str(value) == text
    assert (value.version, value.variant) == (7, "specified in RFC 4122")
    assert before <= value.int >> 80 <= time.time_ns() // 1_000_000


def test_ids_increase_strictly() -> None:
    made = [uuid7() for _ in range(20_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_ids_increase_when_the_clock_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    first = uuid7()
    monkeypatch.setattr(ids.time, "time_ns", lambda: 1_000_000_000)
    made = [first, *(uuid7() for _ in range(1000))]
    assert made == sorted(set(made))


def test_a_full_counter_takes_the_next_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    first = uuid7()
    monkeypatch.setattr(ids, "_counter", 2**42 - 1)
    monkeypatch.setattr(ids.time, "time_ns", lambda: ids._last_ms * 1_000_000)
    second, third = uuid7(), uuid7()
    assert first < second < third
    assert UUID(second).int >> 80 == (UUID(first).int >> 80) + 1


def test_threads_share_no_id() -> None:
    together = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: (together.wait(60), [uuid7() for _ in range(2_000)])[1], range(8)))
    assert len({one for into in made for one in into}) == 16_000
    assert all(into == sorted(into) for into in made)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_counts_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = time.time_ns()
    monkeypatch.setattr(ids.time, "time_ns", lambda: now_ns)
    monkeypatch.setattr(ids.os, "urandom", lambda size: bytes(size))  # only the counter is left to differ
    uuid7()
    monkeypatch.setattr(ids.os, "urandom", lambda size: os.getpid().to_bytes(size, "big"))
    reader, writer = os.pipe()
    with ids._lock:  # as if another thread was making an id at that moment
        child = os.fork()
        if child == 0:
            os.write(writer, uuid7().encode())
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 36).decode() not in {uuid7() for _ in range(1000)}
    os.close(reader)
    os.close(writer)


NOW = 1_800_000_000_123


def test_ids_are_uuid7s_of_the_time_of_dispatch_and_differ() -> None:
    ids = [one.decode() for one in itertools.islice(dispatch_ids(NOW), 1_000)]
    assert len(set(ids)) == 1_000
    for one in ids:
        assert str(uuid.UUID(one)) == one
        assert (uuid.UUID(one).version, uuid.UUID(one).variant) == (7, uuid.RFC_4122)
        assert dispatched_ms(one) == NOW
    for generator in (dispatch_ids(NOW), dispatch_ids(NOW)):
        assert next(generator).decode() not in ids


def test_any_uuid7_tells_its_time() -> None:
    assert abs((dispatched_ms(uuid7()) or 0) - uuid.UUID(uuid7()).int // 2**80) < 60_000


@pytest.mark.parametrize(
    "value", [None, 17, "", "7", str(uuid.UUID(int=5, version=4)), "x" * 14 + "7" + "x" * 21, b"7"]
)
def test_anything_else_has_no_time(value: Any) -> None:
    assert dispatched_ms(value) is None
