"""Encryption at rest: the columns with what tasks are sent with, beside the messages (see ``catalogue``).

::

    wheel_inbox.payload, wheel_load_chunk.payload     encrypted bytes
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
from celery_wheel.values.keyring import EncryptionKeys, KeyMissing, key_of

#: The member of a JSON text that holds the encrypted text.
SEALED = "sealed"


class Seal:
    """Encrypts and decrypts columns of one open store; thread-safe."""

    def __init__(self, keys: EncryptionKeys, name: str) -> None:
        self.keys, self._name = keys, name
        #: The id of the key by which the store's messages were encrypted when it was opened; None: they were not.
        self.in_use: bytes | None = None

    def encrypt(self, plain: bytes) -> bytes:
        """Raises StoreError where the store is encrypted and this process has no key."""
        if self.in_use is not None and not self.keys:
            raise missing_key(self._name, self.in_use)
        return self.keys.encrypt(plain)

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
        try:
            return self.decrypt(found)
        except Malformed:
            return found

    def seal_text(self, text: str) -> str:
        """Return a JSON text whose one member is the encrypted text."""
        sealed = self.encrypt(text.encode())
        return text if key_of(sealed) is None else _dumps({SEALED: b64encode(sealed).decode()})

    def seal_definition(self, text: str) -> str:
        sealed = self.encrypt(text.encode())
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


def missing_key(name: str, key: bytes) -> StoreError:
    return StoreError(
        f"the store {name} is encrypted by the key {key.hex()}, and this process has no keys; nothing was written; set "
        "wheel_encryption_keys as the scheduler has it"
    )


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
