"""Packed rows equal the messages of ``apply_async``, and are read as these are."""

import json
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import signals
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_wheel import Celery
from celery_wheel.broker.queues import encode_message
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.bulk_load import reject_rules as rules
from celery_wheel.bulk_load.columns import BadRow, ColumnRenderer, Columns, Packable
from celery_wheel.bulk_load.message_template import Sampler
from celery_wheel.bulk_load.row import RowReader
from celery_wheel.engine.intake.stored_form import FEW, stored_form, unpack_messages
from celery_wheel.store.message_pack import BODY, CREATED_MS, ENVELOPE, ETA_MS, ID, KEY, PackedKind, PackTemplate, pack
from celery_wheel.store.model import Message, MessageBlock, Unreadable, each
from celery_wheel.values.text import group_name_rule
from tests.kit.packs import lines

NOW = datetime(2029, 1, 1, tzinfo=UTC)
ETA = datetime(2030, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC)
ETA_US = int(ETA.timestamp() * 1_000_000)


def app_with(**conf: Any) -> Any:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(conf)
    app.now = lambda: NOW  # type: ignore[method-assign]  # relative times must be equal in both ways

    @app.task(name="shop.remind", shared=False)
    def remind(*numbers: int, template: str = "") -> None: ...

    @app.task(name="shop.one", shared=False)
    def one(number: int) -> None: ...

    return app


def envelope(n: int) -> str:
    return f"00000000-0000-7000-8000-{n:012d}"


def columns(*rows: dict[str, Any]) -> Columns:
    names = {name for row in rows for name in row}
    given: dict[str, Any] = {name: [row.get(name) for row in rows] for name in names}
    return Columns(
        envelope=[envelope(n) for n in range(len(rows))],
        task=given.pop("task", ["shop.remind"] * len(rows)),
        eta_us=given.pop("eta_us", [ETA_US] * len(rows)),
        eta=given.pop("eta", [ETA.isoformat()] * len(rows)),
        **given,
    )


def unpacked(messages: list[Packable]) -> list[bytes]:
    return [template.fill(values) for template, values in lines(pack(messages))]


def packed(app: Any, *rows: dict[str, Any], shards: int = 1, max_bytes: int = 2**20) -> list[Message]:
    with closing(ColumnRenderer(app, shards, max_bytes)) as renderer:
        messages = renderer.messages(columns(*rows))
    found = [QueuedMessageReader().decode(raw) for shard in sorted(messages) for raw in unpacked(messages[shard])]
    assert all(isinstance(one, Message) for one in found), found
    return [one for one in found if isinstance(one, Message)]


def sent(app: Any, row: dict[str, Any], n: int) -> Message:
    given = {name: json.loads(row[name]) for name in ("args", "kwargs") if row.get(name) is not None}
    if "args" in given:
        given["args"] = tuple(given["args"])
    rest = {name: value for name, value in row.items() if name not in ("args", "kwargs")}
    fields = {"task": "shop.remind", "eta": ETA, "task_id": envelope(n), **rest, **given}
    found = QueuedMessageReader().decode(encode_message(Sampler(app).send(RowReader(app).read(fields)).message))
    assert isinstance(found, Message)
    return found


def comparable(message: Message) -> dict[str, Any]:
    return {**asdict(message), "created_ms": None}


ROWS = [
    {"args": '[1, "a\\u00e9 \\" %s 100%"]', "kwargs": '{"template": "x"}'},
    {"args": "[2]", "kwargs": None},
    {"args": " [ 3 ] ", "kwargs": '{"template": "it\'s"}'},
    {"args": '[{"a": [1, 2, {"b": null}]}]', "kwargs": '{"template": "\\ud83d\\ude00 ü"}', "key": "customer:7"},
    {"args": "[5]", "queue": "mail", "priority": 3, "task_id": "own", "key": "kü"},
    {"args": "[6]", "queue": "mail", "priority": 3},
    {"args": "[7]", "queue": "mail", "priority": 3},
    {"args": "[8]", "expires": 3_600},
    {"args": "[9]", "expires": datetime(2030, 1, 3, tzinfo=UTC)},
    {"args": "[10]", "expires": 60, "key": "customer:7"},
    {"args": "[11]", "group": "tenant:7"},
    {"args": "[12]", "group": "tenant:ü", "key": "tenant:ü"},
    {"args": "[13]", "group": "tenant:7"},
    {"args": "[]", "kwargs": "{}", "task": "elsewhere.unknown"},
    {"args": None, "task": "elsewhere.unknown"},
    {"args": None, "task": "elsewhere.unknown"},
]
ALL = {"args": None, "kwargs": None, "task": "shop.remind", "queue": None, "priority": None, "key": None, "group": None}


@pytest.mark.parametrize(
    "conf",
    [
        {},
        {"task_routes": {"shop.*": {"queue": "shop", "priority": 5}}, "task_default_queue": "other"},
        {"task_compression": "gzip"},
        {"task_serializer": "yaml"},
        {"task_protocol": 1},
    ],
    ids=str,
)
def test_packed_messages_equal_those_of_apply_async(conf: dict[str, Any]) -> None:
    app = app_with(**conf)
    rows = [{**ALL, "expires": None, "task_id": None, **row} for row in ROWS]
    for n, (row, found) in enumerate(zip(rows, packed(app, *rows), strict=True)):
        said = {name: value for name, value in row.items() if value is not None}
        assert found.envelope_id == envelope(n)
        assert comparable(found) == {**comparable(sent(app, said, n)), "envelope_id": envelope(n)}, row


def test_each_row_goes_to_its_shard() -> None:
    found = ColumnRenderer(app_with(), 3, 2**20).messages(columns(*({"args": f"[{n}]"} for n in range(50))))
    assert sorted(found) == [0, 1, 2]
    assert sum(map(len, found.values())) == 50


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"args": "{}"}, r"args must be a list as JSON, got '\{\}'"),
        ({"args": "[1"}, "args must be a list as JSON, got '.1' .Expecting"),
        ({"kwargs": "[]", "args": "[1]"}, "kwargs must be an object as JSON"),
        ({"args": "[1, 2]", "task": "shop.one"}, ".*one.. takes 1 positional argument but 2 were given"),
        ({"args": "[1]", "eta": None, "eta_us": None}, "a row must have either eta or eta_ms"),
        ({"args": "[1]", "eta_us": 2**60}, "eta must be a time from 1970 to the end of 9998|eta must be from 1970"),
        ({"args": "[1]", "task": ""}, "task must be a text of 1 to 512 characters"),
        ({"args": "[1]", "task": "a\0b"}, "task must be without NUL characters"),
        ({"args": "[1]", "key": ""}, "key must be a text of 1 to 512"),
        ({"args": "[1]", "group": ""}, "group must be a text of 1 to 512"),
        ({"args": "[1]", "group": "a\nb"}, "group must be a text without line breaks and control characters, got 'a"),
        (
            {"args": "[1]", "group": "a", "key": "b"},
            "key must be left out, since the group 'a' chooses the shard, got 'b'",
        ),
        ({"args": "[1]", "queue": "q" * 600}, "queue must be a text of 1 to 512"),
        ({"args": "[1]", "priority": 300}, "priority must be a whole number from 0 to 255"),
        ({"args": "[1]", "expires": "soon"}, "expires must be a time, or seconds from now"),
        ({"args": f'["{"x" * 9_000}"]'}, "message must be at most 8,000 bytes .wheel_max_message_bytes., got"),
    ],
)
def test_the_error_of_a_wrong_row_has_its_number_and_content(row: dict[str, Any], words: str) -> None:
    good = {"args": "[1]", "priority": None, "eta": ETA.isoformat(), "eta_us": ETA_US, "task": "shop.remind"}
    renderer = ColumnRenderer(app_with(), 1, 8_000)
    with pytest.raises(BadRow, match=rf"row 1,003: {words}.*; it is \{{.*\"task\""):
        renderer.messages(columns(good, good, good, {**good, **row}, good), first=1_000)


def test_the_reason_of_a_good_row_is_none() -> None:
    for row in ROWS:
        assert rules.reason({"task": "shop.remind", "eta": ETA, **row}) is None, row
    assert rules.reason({"task": "t", "eta_ms": 1_900_000_000_000}) is None
    assert rules.reason({"task": "t", "eta": "2030-01-01"}) is None
    assert rules.reason({"task": "t", "eta": "tomorrow"}) == "eta must be a time, got 'tomorrow'"
    assert rules.reason({"task": "t", "eta_ms": -1}) == "eta must be a time from 1970 to the end of 9998, got -1"
    unwritten = rules.reason({"task": "\ud800", "eta_ms": 1})
    assert unwritten == r"task must be text that can be written as UTF-8, got '\ud800'"


def test_receivers_of_signals_are_called_for_each_row() -> None:
    seen: list[str] = []

    def before(headers: Any, **_: Any) -> None:
        seen.append(headers["id"])
        headers["tenant"] = headers["id"]

    signals.before_task_publish.connect(before)
    try:
        found = packed(app_with(), *({"args": f"[{n}]"} for n in range(5)))
    finally:
        signals.before_task_publish.disconnect(before)
    assert seen == [one.task_id for one in found]
    assert [json.loads(one.headers)["tenant"] for one in found] == seen


def test_rows_with_the_same_arguments_are_separate_messages() -> None:
    """Their text is parsed once."""
    same = {"args": '["x"]', "kwargs": '{"template": "x"}'}
    found = packed(app_with(), *[same] * 5)
    assert {one.body for one in found} == {found[0].body}
    assert json.loads(found[-1].body)[:2] == [["x"], {"template": "x"}]
    assert len({one.envelope_id for one in found}) == 5


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
IDS = st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=4,
)
ANY_ROWS = st.fixed_dictionaries(
    {
        "args": st.lists(VALUES, max_size=3),
        "kwargs": st.dictionaries(TEXTS, VALUES, max_size=2),
        "queue": st.sampled_from(["mail", "news %s"]),
        "key": IDS,
        "group": st.booleans(),  # the key is one
        "task_id": IDS,
        "expires": st.sampled_from([None, 60]),
        "eta_us": st.sampled_from([ETA_US, ETA_US + 1_500]),
    }
)


def fields(one: Message | Unreadable) -> dict[str, Any]:
    return {name: getattr(one, name) for name in type(one).__slots__}


def decoded(messages: list[Packable], reader: QueuedMessageReader) -> list[dict[str, Any]]:
    return [fields(reader.decode(template.fill(values))) for template, values in messages]


def read_back(messages: list[Packable], reader: QueuedMessageReader) -> list[dict[str, Any]]:
    return [fields(one) for one in each(unpack_messages(pack(messages), reader.decode))]


def rendered(app: Any, rows: list[dict[str, Any]]) -> list[Packable]:
    given_ = [{**row, "args": json.dumps(row["args"]), "kwargs": json.dumps(row["kwargs"])} for row in rows]
    for row in given_:
        row["group"] = row["key"] if row.get("group") and group_name_rule(row["key"]) is None else None
    with closing(ColumnRenderer(app, 1, 2**20)) as renderer:
        return renderer.messages(columns(*given_)).get(0, [])


@pytest.mark.slow
@pytest.mark.parametrize("keep_eta", [False, True])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ANY_ROWS, max_size=25))
def test_a_packed_message_is_what_the_reader_reads(app: Any, rows: list[dict[str, Any]], *, keep_eta: bool) -> None:
    messages, reader = rendered(app, rows), QueuedMessageReader(keep_eta=keep_eta)
    assert read_back(messages, reader) == decoded(messages, reader)


ROW = {"args": [1], "kwargs": {}, "queue": "mail", "eta_us": ETA_US, "eta": ETA.isoformat()}


def test_many_messages_of_a_kind_are_read_by_a_form(app: Any) -> None:
    kind = [one for one in rendered(app, [ROW] * 6) if one[0].names]
    assert len(kind) == FEW
    [block] = unpack_messages(pack(kind), QueuedMessageReader().decode)
    assert isinstance(block, MessageBlock)
    assert len(block) == FEW


def test_messages_of_groups_are_read_by_a_form(app: Any) -> None:
    groups = [f"tenant:{n % 3}ü" for n in range(2 + FEW)]
    kind = [one for one in rendered(app, [{**ROW, "key": name, "group": True} for name in groups]) if one[0].names]
    [block] = unpack_messages(pack(kind), QueuedMessageReader().decode)
    assert isinstance(block, MessageBlock)
    assert block.groups == block.keys == groups[2:]
    assert [json.loads(one.headers)["wheel_group"] for one in block.messages()] == groups[2:]


def test_a_form_rejects_a_message_whose_group_has_a_line_break(app: Any) -> None:
    kind = rendered(app, [{**ROW, "key": f"a:{n}", "group": True} for n in range(2 + FEW)])[2:]
    wrong = [(template, tuple(one.replace("a:3", "a\\n3") for one in values)) for template, values in kind]
    [bad] = [one for one in each(unpack_messages(pack(wrong), QueuedMessageReader().decode)) if type(one) is Unreadable]
    assert bad.reason == "group must be a text without line breaks and control characters, got …"


def test_kinds_that_alternate_keep_their_order(app: Any) -> None:
    rows = [{**ROW, "args": [n], "queue": "mail" if n % 2 else "news"} for n in range(4 + 4 * FEW)]
    messages, reader = rendered(app, rows), QueuedMessageReader()
    assert read_back(messages, reader) == decoded(messages, reader)


def test_a_message_that_is_too_large_is_rejected(app: Any) -> None:
    messages = rendered(app, [ROW] * 6 + [{**ROW, "args": ["x" * 5_000]}])
    found = read_back(messages, QueuedMessageReader(max_message_bytes=5_000))
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
        assert read_back(order, reader) == decoded(order, reader)


def test_the_template_of_good_values_has_a_form() -> None:
    assert stored_form(PackedKind(PLAIN, 1, [[one] for one in GOOD]), QueuedMessageReader().decode) is not None


def test_a_template_that_names_its_values_wrongly_is_not_trusted() -> None:
    wrong = PackTemplate(BODY_TEXT + REST, (0, 1, 2, 1, 3, 4, 5), (BODY, ID, ENVELOPE, CREATED_MS, ETA_MS, KEY))
    assert stored_form(PackedKind(wrong, 1, [[one] for one in GOOD]), QueuedMessageReader().decode) is None
