"""Sealed messages: a message for the wheel queue as the body of another one, encrypted, signed, or both.

::

    headers     {"wheel": {"v": 1, "sealed": true, "shard": …,
                           "task": …, "task_id": …}}             so that people find a rejected one
    body        headers RS properties RS body (``store.model.join``), the envelope in the headers
                ─► zstd, AES-256-GCM by wheel_encryption_keys
                ─► HMAC-SHA-256 by wheel_signing_keys, with the name of the wheel queue: a shard knows its own messages
                   only, so in the queue of another one a copy would run once more

The whole message is in it, with envelope and properties: nothing about it can be changed, and an edge that delivers it
in another form changes nothing. ``QueuedMessageReader`` opens it, and returns the message as it would have been.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import zstandard

from celery_wheel.broker.envelope import HEADER, VERSION
from celery_wheel.conf import Conf
from celery_wheel.store.model import Parts, join, split
from celery_wheel.values.error_text import Malformed
from celery_wheel.values.keyring import (
    ENCRYPTED,
    NO_KEYS,
    NO_SIGNING,
    SIGNED,
    EncryptionKeys,
    SigningKeys,
    encryption_keys,
    signing_keys,
)

#: The member of the header of a sealed message.
SEALED = "sealed"


@dataclass(frozen=True, slots=True)
class MessageSeal:
    """The keys of one installation, for the messages of its wheel queues."""

    encryption: EncryptionKeys = NO_KEYS
    signing: SigningKeys = NO_SIGNING
    context: bytes = b""

    @classmethod
    def of(cls, conf: Conf, *, encrypts: bool = True) -> MessageSeal:
        """Return the seal by an app's settings. ``encrypts``: by the keys of encryption, too."""
        context = b"wheel queue " + conf.namespace.encode()
        encryption = encryption_keys(conf.encryption_keys) if encrypts else NO_KEYS
        return cls(encryption, signing_keys(conf.signing_keys), context)

    def __bool__(self) -> bool:
        return bool(self.encryption.current or self.signing.current)

    def seal(
        self, body: Any, publish: dict[str, Any], task: str, task_id: str, shard: int
    ) -> tuple[bytes, dict[str, Any]]:
        """Return body and arguments of kombu's ``publish`` for the sealed message, in place of those of the message."""
        from celery_wheel.broker.queues import NO_PROPERTY, encode_message, message_parts  # kombu: a reader needs none

        headers, properties, encoded = message_parts(body, publish)
        data = join(encode_message(headers), encode_message(properties), encoded)
        if self.encryption.current:
            data = self.encryption.encrypt(compress(data))
        outer = {name: value for name, value in publish.items() if name in NO_PROPERTY}
        outer.pop("serializer", None)
        made = {"content_type": "application/octet-stream", "content_encoding": "binary", "compression": ""}
        names = {"v": VERSION, SEALED: True, "shard": shard, "task": task, "task_id": task_id}
        return self.signing.sign(data, self._of_queue(shard)), {**outer, **made, "headers": {HEADER: names}}

    def open(self, data: bytes, max_bytes: int, shard: Any) -> tuple[Parts, int | None]:
        """Return the parts of the message, and the shard for which it was signed; None: it was not.

        ``shard`` is that of the header. Raises Malformed and KeyMissing.
        """
        is_signed = data[:1] == SIGNED
        if is_signed:
            if type(shard) is not int:
                raise Malformed("signed message must name its shard")
            data = self.signing.check(data, self._of_queue(shard))
        if data[:1] == ENCRYPTED:
            data = decompress(self.encryption.decrypt(data), max_bytes)
        elif not is_signed:
            raise Malformed("sealed message must be encrypted or signed")
        try:
            return split(data), shard if is_signed else None
        except ValueError:
            raise Malformed("sealed message must have headers, properties and a body") from None

    def _of_queue(self, shard: int) -> bytes:
        return b"%b.%d" % (self.context, shard)


_packing, _unpacking = threading.Lock(), threading.Lock()  # a context of zstd serves one thread at a time
_compressor, _decompressor = zstandard.ZstdCompressor(1), zstandard.ZstdDecompressor()


def compress(data: bytes) -> bytes:
    with _packing:
        return _compressor.compress(data)


def decompress(data: bytes, max_bytes: int) -> bytes:
    """Raises Malformed for more than ``max_bytes``, which its frame says before they are made."""
    try:
        if zstandard.frame_content_size(data) > max_bytes:
            raise Malformed(f"message must be at most {max_bytes:,} bytes")
        with _unpacking:
            return _decompressor.decompress(data)
    except zstandard.ZstdError as error:
        raise Malformed("encrypted message must be compressed by zstd") from error


#: Opens nothing.
NO_SEAL = MessageSeal()
