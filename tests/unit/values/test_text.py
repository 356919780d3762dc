"""One rule for the texts that can be stored, at every entrance; nothing that is shown has a masked value."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_wheel.broker.envelope import Envelope, encode
from celery_wheel.bulk_load import reject_rules as rules
from celery_wheel.engine.intake.inbox import parse as parse_item
from celery_wheel.producer.options import parse as parse_options
from celery_wheel.store.model import InboxItem, Unreadable
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
    found = parse_item(item, lambda _: pytest.fail("it is no message"), str)
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
    with pytest.raises(ValueError, match=r"cannot be read: ValueError.*task_ids must be"):
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
    new = {**MASK.value(old), "user": 8}
    assert MASK.restored(new, old) == {**old, "user": 8}
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
