"""``wheel_mask``: a value with a masked name is in nothing that is shown."""

from __future__ import annotations

import json

import pytest

from celery_wheel.values.mask import MASKED, Mask

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
