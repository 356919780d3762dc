"""Sealed messages: the reader returns the message that was sealed; a message that was changed, or that others have
sealed, is rejected with its bytes."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_wheel.broker.queues import build_message, encode_message
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.broker.sealed import NO_SEAL, MessageSeal, compress
from celery_wheel.store.model import Message
from celery_wheel.values.keyring import EncryptionKeys, SigningKeys
from tests.unit.broker.test_envelope import wire

SECRET, OTHER = "a secret of thirty-two characters", "another secret of 32 characters."
MARK = "Marked4111111111111111"
BOTH = MessageSeal(EncryptionKeys([SECRET]), SigningKeys([SECRET]), b"here")
SEALS = {
    "encrypted": replace(BOTH, signing=NO_SEAL.signing),
    "signed": replace(BOTH, encryption=NO_SEAL.encryption),
    "both": BOTH,
}


def sent() -> tuple[bytes, dict[str, Any]]:
    """Return body and arguments of a publish."""
    message = wire()
    publish = {"exchange": "", "routing_key": "wheel.0", "headers": message["headers"], "delivery_mode": 2}
    publish |= {"content_type": "application/json", "content_encoding": "utf-8", "correlation_id": MARK}
    return f'[["{MARK}"], {{}}, {{}}]'.encode(), publish


def raw(seal: MessageSeal, task: str = "proj.add", task_id: str = "t") -> bytes:
    return encode_message(build_message(*seal.seal(*sent(), task, task_id, 0)))


def changed(message: bytes, change: Callable[[bytearray], None]) -> bytes:
    """Return a sealed message with a change of its body."""
    found = json.loads(message)
    body = bytearray(b64decode(found["body"]))
    change(body)
    return json.dumps({**found, "body": b64encode(body).decode()}).encode()


def read(message: bytes, seal: MessageSeal = NO_SEAL, **rules: Any) -> Any:
    return QueuedMessageReader(seal=seal, **rules).decode(message)


@pytest.mark.parametrize("name", SEALS)
def test_a_sealed_message_is_read_as_the_same_one_unsealed(name: str) -> None:
    plain = read(encode_message(build_message(*sent())))
    sealed = raw(SEALS[name])
    assert MARK.encode() not in sealed
    found = read(sealed, SEALS[name])
    assert isinstance(found, Message)
    assert (found.signed_for, found.signed) == ((None, False) if name == "encrypted" else (0, True))
    assert asdict(replace(found, signed=False, signed_for=None)) == asdict(plain)


@pytest.mark.parametrize(
    ("made", "opened", "reason"),
    [
        (
            "both",
            NO_SEAL,
            "is needed; this process has none; add its secret to wheel_signing_keys",
        ),
        ("encrypted", NO_SEAL, "this process has none; add its secret to wheel_encryption_keys"),
        ("signed", MessageSeal(signing=SigningKeys([OTHER]), context=b"here"), "a key with the id"),
        ("both", replace(BOTH, context=b"there"), "they were changed, or are of another wheel"),
    ],
)
def test_a_message_of_others_is_rejected_and_says_whose_task_it_is(made: str, opened: MessageSeal, reason: str) -> None:
    message = raw(SEALS[made])
    found = read(message, opened)
    assert (found.raw, found.of) == (message, ("proj.add", "t"))
    with pytest.raises(ValueError, match=reason):
        raise ValueError(found.reason)


@given(st.sampled_from(sorted(SEALS)), st.data())
def test_a_changed_byte_is_noticed(name: str, data: st.DataObject) -> None:
    def change(body: bytearray) -> None:
        body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))

    found = read(changed(raw(SEALS[name]), change), SEALS[name])
    assert not isinstance(found, Message)
    assert MARK not in found.reason


@pytest.mark.parametrize("names", [("proj.add", "another"), ("proj.other", "t")])
def test_the_names_outside_must_be_those_within(names: tuple[str, str]) -> None:
    reason = "sealed message must be one message, of the task that its header names"
    assert read(raw(BOTH, *names), BOTH).reason == reason


def test_bytes_that_are_neither_encrypted_nor_signed_are_no_sealed_message() -> None:
    inner = encode_message(build_message(*sent()))
    found = read(changed(raw(BOTH), lambda body: body.__setitem__(slice(None), inner)), BOTH)
    assert found.reason == "sealed message must be encrypted or signed"


def test_a_sealed_message_within_another_one_is_rejected() -> None:
    body, publish = BOTH.seal(*sent(), "proj.add", "t", 0)
    twice = encode_message(build_message(*BOTH.seal(body, publish, "proj.add", "t", 0)))
    assert not isinstance(read(twice, BOTH), Message)


@pytest.mark.parametrize("name", ["signed", "both"])
def test_a_message_is_signed_for_the_queue_of_one_shard(name: str) -> None:
    found = json.loads(raw(SEALS[name]))
    found["headers"]["wheel"]["shard"] = 1
    assert "they were changed, or are of another wheel" in read(json.dumps(found).encode(), SEALS[name]).reason
    del found["headers"]["wheel"]["shard"]
    assert read(json.dumps(found).encode(), SEALS[name]).reason == "signed message must name its shard"


@pytest.mark.parametrize("part", ["headers", "correlation_id"])
def test_headers_that_take_seconds_to_read_are_rejected_before_they_are_read(part: str) -> None:
    body, publish = sent()
    if part == "headers":
        publish["headers"]["much"] = [[]] * 400_000
    else:
        publish[part] = "x" * 2**20
    message = encode_message(build_message(*BOTH.seal(body, publish, "proj.add", "t", 0)))
    assert read(message, BOTH).reason == "headers and properties must each be at most 1,048,576 bytes"


@pytest.mark.parametrize("parts", [b"[]\x1e{}\x1ex", b"{}\x1e[]\x1ex", b"1\x1e1\x1e", b"", b"x"])
def test_sealed_bytes_must_be_a_message(parts: bytes) -> None:
    sealed = b64encode(BOTH.signing.sign(BOTH.encryption.encrypt(compress(parts)), b"here.0")).decode()
    found = read(json.dumps({**json.loads(raw(BOTH)), "body": sealed}).encode(), BOTH)
    assert not isinstance(found, Message)
    assert " " in found.reason


def test_deeply_nested_headers_are_read_as_those_of_an_unsealed_message() -> None:
    deep: Any = 1
    for _ in range(900):
        deep = [deep]
    body, publish = sent()
    publish["headers"]["deep"] = deep
    plain = encode_message(build_message(body, publish))
    found = read(encode_message(build_message(*BOTH.seal(body, publish, "proj.add", "t", 0))), BOTH)
    assert type(found) is type(read(plain))


def test_a_message_that_is_too_large_once_it_is_decompressed_is_rejected() -> None:
    _, publish = sent()
    bomb = encode_message(build_message(*BOTH.seal(b"0" * 100_000, publish, "proj.add", "t", 0)))
    assert len(bomb) < 4_000
    assert read(bomb, BOTH, max_message_bytes=50_000).reason == "message must be at most 50,000 bytes"
