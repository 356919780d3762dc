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
from celery_wheel.broker.sealed import NO_SEAL, MessageSeal
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
    return encode_message(build_message(*seal.seal(*sent(), task, task_id)))


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
    assert found.is_signed == (name != "encrypted")
    assert asdict(replace(found, is_signed=False)) == asdict(plain)


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
    body, publish = BOTH.seal(*sent(), "proj.add", "t")
    twice = encode_message(build_message(*BOTH.seal(body, publish, "proj.add", "t")))
    assert not isinstance(read(twice, BOTH), Message)


def test_a_message_that_is_too_large_once_it_is_decompressed_is_rejected() -> None:
    _, publish = sent()
    bomb = encode_message(build_message(*BOTH.seal(b"0" * 100_000, publish, "proj.add", "t")))
    assert len(bomb) < 4_000
    assert read(bomb, BOTH, max_message_bytes=50_000).reason == "message must be at most 50,000 bytes"
