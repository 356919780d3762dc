"""Keys: only the bytes of a known key, as they were made, are opened; any secret of the setting opens its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_wheel.values.error_text import Malformed
from celery_wheel.values.keyring import DAY_S, MIN_SECRET, OVERHEAD, EncryptionKeys, KeyMissing, SigningKeys, key_of

OLD, NEW = "o" * MIN_SECRET, "n" * MIN_SECRET


@given(st.binary(max_size=300))
def test_encrypted_bytes_are_decrypted_and_show_nothing_but_their_size(plain: bytes) -> None:
    keys = EncryptionKeys([NEW, OLD])
    first, second = keys.encrypt(plain), keys.encrypt(plain)
    assert keys.decrypt(first) == keys.decrypt(second) == plain
    assert first != second
    assert len(first) == len(plain) + OVERHEAD
    assert len(plain) < 4 or plain not in first


def test_encrypted_bytes_are_at_most_forty_bytes_longer() -> None:
    assert OVERHEAD <= 40


def test_a_secret_behind_the_first_one_opens_and_does_not_encrypt() -> None:
    before = EncryptionKeys([OLD]).encrypt(b"x")
    both = EncryptionKeys([NEW, OLD])
    assert both.decrypt(before) == b"x"
    assert key_of(both.encrypt(b"x")) == EncryptionKeys([NEW]).current != key_of(before)
    with pytest.raises(KeyMissing, match=rf"id {EncryptionKeys([OLD]).ids[0]} is needed; this process has .*add its"):
        EncryptionKeys([NEW]).decrypt(before)


def test_an_empty_first_secret_opens_and_encrypts_nothing() -> None:
    keys = EncryptionKeys(["", OLD])
    assert keys
    assert keys.encrypt(b"x") == b"x"
    assert keys.decrypt(EncryptionKeys([OLD]).encrypt(b"x")) == b"x"
    assert not EncryptionKeys()


@given(st.binary(min_size=1, max_size=50), st.data())
def test_a_changed_byte_is_noticed(plain: bytes, data: st.DataObject) -> None:
    encrypted = bytearray(EncryptionKeys([NEW]).encrypt(plain))
    signed = bytearray(SigningKeys([NEW]).sign(plain, b"here"))
    for made, opened in ((encrypted, EncryptionKeys([NEW]).decrypt), (signed, _check)):
        at = data.draw(st.integers(0, len(made) - 1))
        made[at] ^= data.draw(st.integers(1, 255))
        with pytest.raises((Malformed, KeyMissing)):
            opened(bytes(made))
        with pytest.raises((Malformed, KeyMissing)):
            opened(bytes(made[: data.draw(st.integers(0, len(made) - 1))]))


def _check(signed: bytes) -> bytes:
    return SigningKeys([NEW]).check(signed, b"here")


def test_a_signature_holds_for_its_purpose_alone() -> None:
    keys = SigningKeys([NEW, OLD])
    signed = keys.sign(b"x", b"here")
    assert SigningKeys([OLD, NEW]).check(signed, b"here") == b"x"
    for other in (b"", b"her", b"here ", b"there"):
        with pytest.raises(Malformed, match="they were changed, or are of another wheel"):
            keys.check(signed, other)
    with pytest.raises(Malformed):  # bytes do not pass from the context to the message
        keys.check(keys.sign(b"ex", b"her"), b"here")
    with pytest.raises(KeyMissing, match="wheel_signing_keys"):
        SigningKeys([OLD]).check(signed, b"here")


def test_each_day_has_a_key_of_its_own() -> None:
    now_s = 0.0
    keys = EncryptionKeys([NEW], clock=lambda: now_s)
    found = {}
    for day in (0, 1, 65_535, 65_536):
        now_s = day * DAY_S + 5.0
        found[day] = keys.encrypt(b"x")
    assert found[0][5:7] == found[65_536][5:7] != found[1][5:7]
    assert {EncryptionKeys([NEW]).decrypt(one) for one in found.values()} == {b"x"}


def test_a_key_for_one_purpose_is_not_that_of_the_other() -> None:
    assert EncryptionKeys([NEW]).ids != SigningKeys([NEW]).ids
