"""Keys: what leaves this process encrypted or signed, and how it is opened again.

::

    encrypted    \\x01 | id of the key 4 | day 2 | nonce 12 | AES-256-GCM: the bytes, and a tag of 16     35 bytes more
    signed       \\x02 | id of the key 4 | HMAC-SHA-256 32 | the bytes                                    37 bytes more

A setting has the secrets, texts of at least 32 characters: the first one encrypts or signs, each of them opens. So a
secret is replaced without a pause: add the new one behind the old one in every process, then put it first, then remove
the old one. The id of a key is made of its secret, so it is the same in each process, and it tells nothing about it.

A key of AES-GCM with random nonces is good for 2**32 messages: each day has a key of its own, derived from the secret,
which is enough for 49,000 messages a second. A signature covers a context too, so that the bytes of one purpose, or of
one installation, are not good for another.

Promises: bytes that were changed are not opened. Non-promises: the size of the bytes shows; the same bytes, sent again,
are opened again; the secrets are in the memory of the process. To encrypt needs the package cryptography.
"""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from celery_wheel.values.error_text import Malformed

ENCRYPTED, SIGNED = b"\x01", b"\x02"

ID_BYTES, DAY_BYTES, NONCE_BYTES, TAG_BYTES, MAC_BYTES = 4, 2, 12, 16, 32
_NONCE_AT = 1 + ID_BYTES + DAY_BYTES
_DATA_AT = _NONCE_AT + NONCE_BYTES
_MAC_AT = 1 + ID_BYTES
_SIGNED_AT = _MAC_AT + MAC_BYTES

#: Bytes by which ``key_of`` tells the key.
HEAD_BYTES = _MAC_AT

#: Bytes that encrypting adds.
OVERHEAD = _DATA_AT + TAG_BYTES

#: The shortest secret, in characters: 24 random bytes in base64.
MIN_SECRET = 32

DAY_S = 86_400

#: Days of keys that a process keeps in memory.
MAX_DAYS = 1_000


class Secret(str):
    """A secret of a setting; pages and logs of errors, which show the values of a frame, do not show it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<secret>"


class KeyMissing(Malformed, LookupError):
    """Encrypted or signed bytes need a key that this process does not have."""


class _Key:
    """A key made of a secret, for one purpose."""

    def __init__(self, secret: str, purpose: bytes) -> None:
        self.root = hmac.digest(b"celery-wheel " + purpose, secret.encode(), "sha256")
        self.id = hmac.digest(self.root, b"id", "sha256")[:ID_BYTES]

    def of_day(self, day: bytes) -> Any:
        """Return the cipher of a day, given as its number since 1970."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(hmac.digest(self.root, b"day" + day, "sha256"))


class _Keys:
    purpose = b""

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        keys = [_Key(one, self.purpose) for one in secrets if one]
        self._by_id = {one.id: one for one in keys}
        self._first = keys[0] if keys and secrets[0] else None

    def __bool__(self) -> bool:
        """Whether there is a key at all; the first one may be "", and then nothing new is encrypted."""
        return bool(self._by_id)

    @property
    def ids(self) -> list[str]:
        """The ids of the keys in hexadecimal digits, in the order of the setting."""
        return [one.hex() for one in self._by_id]

    @property
    def current(self) -> bytes | None:
        """The id of the key that encrypts or signs; None where none does."""
        return None if self._first is None else self._first.id

    def _key(self, id_: bytes, setting: str) -> _Key:
        found = self._by_id.get(id_)
        if found is None:
            has = ", ".join(self.ids) or "none"
            raise KeyMissing(
                f"a key with the id {id_.hex()} is needed; this process has {has}; add its secret to {setting}"
            )
        return found


class EncryptionKeys(_Keys):
    """The keys of ``wheel_encryption_keys``; thread-safe."""

    purpose = b"encryption"

    def __init__(self, secrets: Sequence[str] = (), clock: Callable[[], float] = time.time) -> None:
        super().__init__(secrets)
        self._clock = clock
        self._encrypting: tuple[bytes, Callable[[bytes, bytes, None], bytes]] = b"", _refuse
        self._by_head: dict[bytes, Callable[[bytes, bytes, None], bytes]] = {}

    def encrypt(self, plain: bytes) -> bytes:
        """Return the bytes, encrypted by the first key; as they are where no key encrypts."""
        return self.encrypt_all([plain], self.current)[0]

    def encrypt_all(self, plain: Sequence[bytes], key_id: bytes | None) -> list[bytes]:
        """Return the bytes, each encrypted by this key; as they are for None. Raises KeyMissing."""
        if key_id is None or not plain:
            return list(plain)
        key = self._key(key_id, "wheel_encryption_keys")
        day = (int(self._clock() // DAY_S) % 2 ** (8 * DAY_BYTES)).to_bytes(DAY_BYTES)
        head = ENCRYPTED + key.id + day
        made, encrypt = self._encrypting
        if made != head:
            encrypt = key.of_day(day).encrypt
            self._encrypting = head, encrypt
        nonces = os.urandom(NONCE_BYTES * len(plain))
        found = []
        for at, one in enumerate(plain):
            nonce = nonces[at * NONCE_BYTES : (at + 1) * NONCE_BYTES]
            found.append(b"%b%b%b" % (head, nonce, encrypt(nonce, one, None)))
        return found

    def decrypt(self, found: bytes) -> bytes:
        """Return what was encrypted. Raises KeyMissing, and Malformed for bytes that were changed."""
        if found[:1] != ENCRYPTED or len(found) < OVERHEAD:
            raise Malformed("encrypted bytes must begin with their mark and the id of a key")
        head = found[:_NONCE_AT]
        decrypt = self._by_head.get(head) or self._decrypt_of(head)
        try:
            plain: bytes = decrypt(found[_NONCE_AT:_DATA_AT], found[_DATA_AT:], None)
        except Exception as error:
            if type(error).__name__ != "InvalidTag":  # to import it takes a third of the time of a short message
                raise
            raise Malformed("encrypted bytes must be as they were encrypted; they were changed") from None
        return plain

    def _decrypt_of(self, head: bytes) -> Callable[[bytes, bytes, None], bytes]:
        """Return the function for bytes that begin so: of one key and day."""
        key = self._key(head[1:_MAC_AT], "wheel_encryption_keys")
        if len(self._by_head) >= MAX_DAYS:
            self._by_head.clear()
        found: Callable[[bytes, bytes, None], bytes] = key.of_day(head[_MAC_AT:]).decrypt
        self._by_head[head] = found
        return found


class SigningKeys(_Keys):
    """The keys of ``wheel_signing_keys``; thread-safe."""

    purpose = b"signing"

    def sign(self, data: bytes, context: bytes) -> bytes:
        """Return the bytes with a signature of the first key in front of them; as they are where no key signs."""
        key = self._first
        return data if key is None else b"%b%b%b%b" % (SIGNED, key.id, _mac(key, data, context), data)

    def check(self, signed: bytes, context: bytes) -> bytes:
        """Return what was signed. Raises KeyMissing, and Malformed for bytes that were changed."""
        if signed[:1] != SIGNED or len(signed) < _SIGNED_AT:
            raise Malformed("signed bytes must begin with their mark and the id of a key")
        key = self._key(signed[1:_MAC_AT], "wheel_signing_keys")
        data = signed[_SIGNED_AT:]
        if not hmac.compare_digest(_mac(key, data, context), signed[_MAC_AT:_SIGNED_AT]):
            raise Malformed("signed bytes must be as they were signed; they were changed, or are of another wheel")
        return data


def _refuse(*_: object) -> bytes:
    raise AssertionError("no key encrypts")


def _mac(key: _Key, data: bytes, context: bytes) -> bytes:
    return hmac.digest(key.root, b"%d:%b%b" % (len(context), context, data), "sha256")


def key_of(encrypted: bytes) -> bytes | None:
    """Return the id of the key by which bytes are encrypted; None where they are not."""
    return encrypted[1:_MAC_AT] if encrypted[:1] == ENCRYPTED and len(encrypted) >= OVERHEAD else None


#: Nothing is encrypted, nothing is signed.
NO_KEYS, NO_SIGNING = EncryptionKeys(), SigningKeys()


@lru_cache(64)
def encryption_keys(secrets: tuple[str, ...] = ()) -> EncryptionKeys:
    """Return the keys of the setting's value, made once in a process."""
    return EncryptionKeys(secrets)


@lru_cache(64)
def signing_keys(secrets: tuple[str, ...] = ()) -> SigningKeys:
    """Return the keys of the setting's value, made once in a process."""
    return SigningKeys(secrets)
