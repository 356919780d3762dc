"""A line of a file has every byte of a message, and the scheduler reads the same message from it."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from celery_wheel.broker.envelope import HEADER
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.broker.sealed import NO_SEAL, MessageSeal
from celery_wheel.errors import FileUnusable
from celery_wheel.operations.drain.file import DrainHeader, header_of, line_of, task_of
from celery_wheel.operations.drain.to_broker import with_eta
from celery_wheel.store.model import Message, Row, StoredMessage
from celery_wheel.values.keyring import SigningKeys
from tests.kit.holder import message

SIGNING = MessageSeal(signing=SigningKeys(["a secret of thirty-two characters"]), context=b"here")

DRAIN = "0b8f7c9e-6a55-4c34-8a4c-2f0e5d1b7a11"

PROTOCOL_2 = '{"lang": "py", "task": "app.remind", "id": "1", "eta": null, "greeting": "Gr\\u00fc\\u00dfe"}'
PROPERTIES = (
    '{"content_type": "application/json", "content_encoding": "utf-8", "correlation_id": "1", "delivery_mode": 2}'
)


def made(headers: str = PROTOCOL_2, properties: str = PROPERTIES, **parts: Any) -> Message:
    return message(headers=headers.encode(), properties=properties.encode(), **parts)


def back(kept: StoredMessage, envelope_id: str | None = None) -> Message:
    task = task_of(line_of(kept, 1))
    found = QueuedMessageReader().decode((task.with_id(envelope_id) if envelope_id else task).wire)
    assert isinstance(found, Message), found.reason
    return found


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"body": bytes(range(256)), "priority": 9, "key": "order:42", "expires_ms": 5, "queue_expires_ms": 7},
        {"key": "tenant:42", "group": "tenant:42"},
        {"headers": "{}", "body": b'{"task": "app.remind", "eta": "2099-01-01"}'},
        {"headers": '{"task": "t", "wheel": "the task\'s own", "eta": null, "x": {"__type__": "datetime"}}'},
        {"properties": '{"content_type": null, "content_encoding": null, "reply_to": "\\u2028"}'},
        {"exchange": "news", "exchange_type": "topic", "routing_key": "a.b", "queue": None, "task_id": "näch\u2028ste"},
    ],
)
def test_a_message_is_read_as_it_was_written(parts: dict[str, Any]) -> None:
    one = made(**parts)
    assert asdict(back(StoredMessage(5, 0, 7, 5, 1, one))) == asdict(one)


@pytest.mark.parametrize("signed", [True, False])
def test_a_message_that_was_signed_is_signed_again_for_its_shard(signed: bool) -> None:
    one = made(signed=signed, body=bytes(range(256)))
    task = task_of(line_of(StoredMessage(5, 0, 7, 5, 1, one), 1))
    assert task.wire_for(3, NO_SEAL) == task.wire
    found = QueuedMessageReader(seal=SIGNING).decode(task.wire_for(3, SIGNING))
    assert isinstance(found, Message), found.reason
    assert asdict(found) == asdict(replace(one, signed_for=3 if signed else None))


def test_a_row_in_doubt_is_marked_and_a_task_can_have_another_id() -> None:
    one = made()
    found = back(StoredMessage(5, 0, 7, 5, 1, one, redelivered=True), DRAIN)
    assert json.loads(found.headers)["wheel_redelivered"] is True
    assert (found.envelope_id, found.task_id) == (DRAIN, one.task_id)


def test_a_task_names_what_another_message_of_it_has_otherwise() -> None:
    task = task_of(line_of(StoredMessage(5, 0, 7, 5, 1, made(eta_ms=7, key="k", unique="u")), 1))
    assert task.differing(made(eta_ms=7, key="k")) == []
    other = made(eta_ms=8, key="k", task="another", queue="mail", body=b"[[1], {}, {}]")
    assert task.differing(other) == ["name", "instant", "queue", "arguments"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"task_id": ""}, "task_id must be a text of 1"),
        ({"envelope_id": "x"}, "badly formed"),
        ({"envelope_id": 7}, "one that a drain writes"),
        ({"headers": "[]"}, "must be objects"),
        ({"headers": "{"}, "Expecting"),
        ({"body": "ü"}, "base64|ASCII"),
        ({"row": None}, "one that a drain writes"),
    ],
)
def test_a_line_that_cannot_be_read_raises_the_reason(change: dict[str, Any], reason: str) -> None:
    line = json.dumps({**json.loads(line_of(StoredMessage(5, 0, 7, 5, 1, made()), 1)), **change}).encode()
    with pytest.raises(ValueError, match=reason):
        task_of(line)


@pytest.mark.parametrize("line", [b"", b"[]", b"null", b"\xff", b'{"celery_wheel": "drain", "version": 1}'])
def test_another_first_line_is_refused(line: bytes) -> None:
    with pytest.raises(FileUnusable, match="must begin with"):
        header_of(line, "tasks.jsonl")


def test_a_header_is_read_as_it_was_written() -> None:
    header = DrainHeader(DRAIN, DRAIN, 3, 4)
    assert header_of(header.line(), "x") == header


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ('{"task": "t", "eta": null}', {"task": "t", "eta": "2033-05-18T03:33:20.001000+00:00", "wheel_native": True}),
        ('{"task": "t", "eta": "as it was"}', {"task": "t", "eta": "as it was", "wheel_native": True}),
        ("{}", {"wheel_native": True}),
        ("[]", []),
    ],
)
def test_headers_get_their_eta_back(headers: str, expected: Any) -> None:
    row = Row.of(made(headers, eta_ms=2_000_000_000_001), 1, 0, 1, 1)
    assert json.loads(with_eta(row).parts().headers) == expected
    assert HEADER not in json.loads(with_eta(row).parts().headers)
