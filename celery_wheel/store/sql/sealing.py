"""Encryption at rest: the columns with what tasks are sent with, beside the messages (see ``dictionaries``).

::

    wheel_inbox.payload, wheel_load_chunk.payload     encrypted bytes; without a key as they are, behind \\x03 if they
                                                      begin like encrypted ones
    wheel_schedule.definition                         {"task": …, "options": {"queue": …}, "sealed": base64}: pages
                                                      filter by task and queue
    wheel_revision.before                             {"sealed": base64}

Values that were written without a key are read as they are, so a key can be added to a store in use; ``repacking``
encrypts them.
Ids, names of tasks, queues, keys, groups and schedules, times and sizes stay readable: the store finds rows by them.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode

from celery_wheel.errors import StoreError
from celery_wheel.values import json_object
from celery_wheel.values.error_text import Malformed
from celery_wheel.values.keyring import ENCRYPTED, EncryptionKeys, KeyMissing, key_of

#: The member of a JSON text that holds the encrypted text.
SEALED = "sealed"

#: Before bytes that nothing has encrypted, and that begin as if: a damaged message can have any first byte.
PLAIN = b"\x03"


class Seal:
    """Encrypts and decrypts columns of one open store; thread-safe."""

    def __init__(self, keys: EncryptionKeys, name: str) -> None:
        self.keys, self._name = keys, name
        #: The id of the key by which the store's messages were encrypted when it was opened; None: they were not.
        self.in_use: bytes | None = None
        #: The id of the key of the present dictionary. The texts of schedules are encrypted by it: schedulers whose
        #: first keys differ agree on it, and it stays in the store until no text has it.
        self.present = keys.current

    def encrypt(self, plain: bytes) -> bytes:
        """Raises StoreError where the store is encrypted by a key that this process does not have."""
        found = self._by(self.keys.current, plain)
        return PLAIN + plain if found is plain and plain[:1] in (ENCRYPTED, PLAIN) else found

    def _by(self, key: bytes | None, plain: bytes) -> bytes:
        if self.in_use is not None and self.in_use.hex() not in self.keys.ids:
            raise missing_key(self._name, self.in_use, self.keys)
        return self.keys.encrypt_all([plain], key)[0]

    def decrypt(self, found: bytes) -> bytes:
        """Raises StoreError where the key is missing, Malformed where the bytes were changed."""
        if key_of(found) is None:
            return found
        try:
            return self.keys.decrypt(found)
        except KeyMissing as error:
            raise StoreError(f"the store {self._name} cannot be read: {error}") from error

    def payload(self, found: bytes) -> bytes:
        """Return what was encrypted; bytes that were changed are returned as they are: their reader rejects them."""
        if found[:1] == PLAIN:
            return found[1:]
        try:
            return self.decrypt(found)
        except Malformed:
            return found

    def seal_text(self, text: str) -> str:
        """Return a JSON text whose one member is the encrypted text."""
        sealed = self._by(self.present, text.encode())
        return text if key_of(sealed) is None else _dumps({SEALED: b64encode(sealed).decode()})

    def seal_definition(self, text: str) -> str:
        sealed = self._by(self.present, text.encode())
        if key_of(sealed) is None:
            return text
        found = json_object(text)
        shown = {name: found[name] for name in ("task",) if name in found}
        options = found.get("options")
        if isinstance(options, dict) and "queue" in options:
            shown["options"] = {"queue": options["queue"]}
        return _dumps({**shown, SEALED: b64encode(sealed).decode()})

    def open_text(self, text: str) -> str:
        sealed = sealed_in(text)
        if sealed is None:
            return text
        opened = self.payload(sealed)
        return text if opened is sealed else opened.decode()

    def shown_text(self, text: str) -> str:
        """Return the text, or what is readable of it where this process does not have the key."""
        try:
            return self.open_text(text)
        except StoreError:
            return text


def sealed_in(text: str) -> bytes | None:
    """Return the encrypted bytes of a text; None where it is as it was written."""
    if f'"{SEALED}":"' not in text:
        return None
    found = json_object(text).get(SEALED)
    sealed = b64decode(found) if isinstance(found, str) and found.isascii() else b""
    return None if key_of(sealed) is None else sealed


def missing_key(name: str, key: bytes, keys: EncryptionKeys) -> StoreError:
    has = ", ".join(keys.ids) or "no keys"
    return StoreError(
        f"the store {name} is encrypted by the key {key.hex()}, and this process has {has}; nothing was written; set "
        "wheel_encryption_keys as the scheduler has it"
    )


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
