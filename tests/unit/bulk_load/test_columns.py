"""Packed rows, as the scheduler reads them, equal the messages of ``apply_async``."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import signals

from celery_wheel import Celery
from celery_wheel.broker.queues import encode_message
from celery_wheel.broker.reader import QueuedMessageReader as MessageReader
from celery_wheel.bulk_load import reject_rules as rules
from celery_wheel.bulk_load.columns import BadRow, ColumnRenderer, Columns, Packable
from celery_wheel.bulk_load.message_template import Sampler
from celery_wheel.bulk_load.row import RowReader
from celery_wheel.store.message_pack import pack
from celery_wheel.store.model import Message
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
    renderer = ColumnRenderer(app, shards, max_bytes)
    try:
        messages = renderer.messages(columns(*rows))
    finally:
        renderer.close()
    found = [MessageReader().decode(raw) for shard in sorted(messages) for raw in unpacked(messages[shard])]
    assert all(isinstance(one, Message) for one in found), found
    return [one for one in found if isinstance(one, Message)]


def sent(app: Any, row: dict[str, Any], n: int) -> Message:
    """Return the message that Celery's own code makes of a row."""
    given = {name: json.loads(row[name]) for name in ("args", "kwargs") if row.get(name) is not None}
    if "args" in given:
        given["args"] = tuple(given["args"])
    rest = {name: value for name, value in row.items() if name not in ("args", "kwargs")}
    fields = {"task": "shop.remind", "eta": ETA, "task_id": envelope(n), **rest, **given}
    found = MessageReader().decode(encode_message(Sampler(app).send(RowReader(app).read(fields)).message))
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
    {"args": "[]", "kwargs": "{}", "task": "elsewhere.unknown"},
    {"args": None, "task": "elsewhere.unknown"},
    {"args": None, "task": "elsewhere.unknown"},
]
ALL = {"args": None, "kwargs": None, "task": "shop.remind", "queue": None, "priority": None, "key": None}


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
    assert rules.reason({"task": "\ud800", "eta_ms": 1}) == (
        r"task must be text that can be written as UTF-8, got '\ud800'"
    )


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
