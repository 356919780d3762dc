"""The messages of a pack are, byte for byte, those that the wheel queue's reader reads of each row."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.bulk_load.columns import ColumnRenderer, Packable
from celery_wheel.engine.intake.stored_form import FEW, stored_form, unpack_messages
from celery_wheel.store.block import MessageBlock, each
from celery_wheel.store.message_pack import BODY, CREATED_MS, ENVELOPE, ETA_MS, ID, KEY, PackedKind, PackTemplate, pack
from celery_wheel.store.model import Message, Unreadable
from tests.unit.bulk_load.test_columns import ETA, ETA_US, columns

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
IDS = st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=4,
)
ROWS = st.fixed_dictionaries(
    {
        "args": st.lists(VALUES, max_size=3),
        "kwargs": st.dictionaries(TEXTS, VALUES, max_size=2),
        "queue": st.sampled_from(["mail", "news %s"]),
        "key": IDS,
        "task_id": IDS,
        "expires": st.sampled_from([None, 60]),
        "eta_us": st.sampled_from([ETA_US, ETA_US + 1_500]),
    }
)


def fields(one: Message | Unreadable) -> dict[str, Any]:
    return {name: getattr(one, name) for name in type(one).__slots__}


def decoded(messages: list[Packable], reader: QueuedMessageReader) -> list[dict[str, Any]]:
    return [fields(reader.decode(template.fill(values))) for template, values in messages]


def unpacked(messages: list[Packable], reader: QueuedMessageReader) -> list[dict[str, Any]]:
    return [fields(one) for one in each(unpack_messages(pack(messages), reader.decode))]


def rendered(app: Any, rows: list[dict[str, Any]]) -> list[Packable]:
    renderer = ColumnRenderer(app, 1, 2**20)
    try:
        given_ = [{**row, "args": json.dumps(row["args"]), "kwargs": json.dumps(row["kwargs"])} for row in rows]
        return renderer.messages(columns(*given_)).get(0, [])
    finally:
        renderer.close()


@pytest.mark.parametrize("keep_eta", [False, True])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ROWS, max_size=25))
def test_a_packed_message_is_the_one_that_the_reader_reads(
    app: Any, rows: list[dict[str, Any]], *, keep_eta: bool
) -> None:
    messages, reader = rendered(app, rows), QueuedMessageReader(keep_eta=keep_eta)
    assert unpacked(messages, reader) == decoded(messages, reader)


ROW = {"args": [1], "kwargs": {}, "queue": "mail", "eta_us": ETA_US, "eta": ETA.isoformat()}


def test_many_messages_of_a_kind_are_read_by_a_form(app: Any) -> None:
    kind = [one for one in rendered(app, [ROW] * 6) if one[0].names]
    assert len(kind) == FEW
    [block] = unpack_messages(pack(kind), QueuedMessageReader().decode)
    assert isinstance(block, MessageBlock)
    assert len(block) == FEW


def test_kinds_that_alternate_keep_their_order(app: Any) -> None:
    rows = [{**ROW, "args": [n], "queue": "mail" if n % 2 else "news"} for n in range(4 + 4 * FEW)]
    messages, reader = rendered(app, rows), QueuedMessageReader()
    assert unpacked(messages, reader) == decoded(messages, reader)


def test_a_message_that_is_too_large_is_rejected(app: Any) -> None:
    messages = rendered(app, [ROW] * 6 + [{**ROW, "args": ["x" * 5_000]}])
    found = unpacked(messages, QueuedMessageReader(max_message_bytes=5_000))
    assert ["reason" in one for one in found] == [False] * 6 + [True]


BODY_TEXT = '{"body": %s, "headers": {"lang": "py", "task": "t", "id": %s, "wheel": {"v": 1, "id": %s, "task": "t", '
REST = (
    '"task_id": %s, "eta_ms": %s, "created_ms": %s, "key": %s, "exchange": "", "exchange_type": "direct", '
    '"routing_key": "q"}}, "properties": {"body_encoding": "utf-8"}}'
)
NAMES = (BODY, ID, ENVELOPE, ETA_MS, CREATED_MS, KEY)
PLAIN = PackTemplate(BODY_TEXT + REST, (0, 1, 2, 1, 3, 4, 5), NAMES)
UUID = '"00000000-0000-7000-8000-000000000001"'
GOOD = ('"[]"', '"a"', UUID, "1", "2", "null")


@pytest.mark.parametrize(
    "bad",
    [
        {ENVELOPE: UUID.replace("1", "A")},
        {ENVELOPE: UUID.replace("0-", "00", 1)},
        {ID: '""'},
        {ID: '"\\u0000"'},
        {ID: '"\\u0061"'},
        {ID: '"\\ud800"'},
        {ID: '"' + "ü" * 513 + '"'},
        {ID: "1"},
        {ETA_MS: "-1"},
        {ETA_MS: "253370764800000"},
        {ETA_MS: "1.0"},
        {CREATED_MS: "null"},
        {KEY: "5"},
        {KEY: '"\\u00fc"'},
        {BODY: "[]"},
        {BODY: '"ü"'},
        {BODY: " "},
    ],
)
def test_a_value_that_breaks_a_rule_is_read_as_the_reader_reads_it(bad: dict[str, str]) -> None:
    messages = [(PLAIN, GOOD)] * 5 + [(PLAIN, tuple({**dict(zip(NAMES, GOOD, strict=True)), **bad}.values()))]
    for order in (messages, messages[::-1], messages[-1:] + messages[:2] + messages[-1:] * 2):
        reader = QueuedMessageReader()
        raw = [(template, values) for template, values in order]
        assert [fields(one) for one in each(unpack_messages(pack(raw), reader.decode))] == decoded(raw, reader)


def test_the_template_of_good_values_has_a_form() -> None:
    assert stored_form(PackedKind(PLAIN, 1, [[one] for one in GOOD]), QueuedMessageReader().decode) is not None


def test_a_template_that_names_its_values_wrongly_is_not_trusted() -> None:
    wrong = PackTemplate(BODY_TEXT + REST, (0, 1, 2, 1, 3, 4, 5), (BODY, ID, ENVELOPE, CREATED_MS, ETA_MS, KEY))
    assert stored_form(PackedKind(wrong, 1, [[one] for one in GOOD]), QueuedMessageReader().decode) is None
