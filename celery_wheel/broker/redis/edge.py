"""The broker edge for Redis: implements ``engine.port.FencingBroker``, mostly with one round trip for a call.

::

    producers ──LPUSH──► wheel.3 ──peek──► engine ──commit──► store
                            └───────trim──────┘
                                                ┌─ push into mail, mail\\x06\\x166, news, …
    engine ──publish(chunk)──► publish.lua ─────┤                                            one script
                                                └─ wheel.offset.3: lane:0 = upto, failed:0 = …, last = number

Promises: a chunk is published exactly once, in order, as long as Redis loses no acknowledged write; a loss is noticed
(ROLLED_BACK, MISSING, OffsetLost). An older epoch changes nothing, and another store adopts nothing. A row that its
queue does not take is reported, never dropped. A row with several queues, one of which is no list, goes to none of
them. A key that is not a list is neither pushed to nor made to expire.

Non-promises: fanout is PUBLISH, so only subscribers get it, and after a rollback a repeated chunk may reach them twice.
``publish`` sends all its rows in one request: the caller bounds a chunk's bytes.

All methods are thread-safe. Files: ``connect`` the client, ``offsets`` the hash, ``*.lua`` the scripts, ``routing`` and
``bindings`` the lists of a row, ``wire`` its bytes, ``publish_call`` a chunk as arguments, ``trim`` the old end of a
wheel queue, ``errors`` Redis's errors, ``layout`` kombu's key names.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, cast

from redis.exceptions import ResponseError

from celery_wheel.broker.errors import not_adopted
from celery_wheel.broker.names import wheel_queue_name
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.broker.redis import offsets, scripts
from celery_wheel.broker.redis.bindings import Bindings
from celery_wheel.broker.redis.connect import connect
from celery_wheel.broker.redis.errors import redis_errors, refuses_command
from celery_wheel.broker.redis.layout import Layout
from celery_wheel.broker.redis.offsets import Owner
from celery_wheel.broker.redis.publish_call import publish_call
from celery_wheel.broker.redis.routing import RedisRouter
from celery_wheel.broker.redis.trim import Proof, proof_of, read_oldest
from celery_wheel.engine.port import BrokerOffset, Chunk, ConfirmedChunk, Peeked, Published, PublishResult
from celery_wheel.errors import Fenced, OffsetLost, StoreConflict
from celery_wheel.store.model import Message, Position, Unreadable

logger = logging.getLogger(__name__)

#: A holder notes the time twice a second; a claim is allowed when another store's holder has not done so for this long.
OCCUPIED_MS = 5_000

CLAIM = "celery -A proj wheel claim-broker"

_RESULTS = {
    "published": PublishResult.PUBLISHED,
    "already": PublishResult.ALREADY,
    "rolled back": PublishResult.ROLLED_BACK,
    # No holder leaves an offset inside a chunk. The remedy is that of a rollback, whatever the cause: adopt, compare.
    "inside": PublishResult.ROLLED_BACK,
    "fenced": PublishResult.FENCED,
    "missing": PublishResult.MISSING,
}


class RedisBroker:
    """Implements ``FencingBroker`` for a Redis server that kombu's Redis transport uses as well.

    Args:
        url: the broker URL, as kombu reads it.
        store_uuid: the store to which the offsets' positions belong.
        store_place: the place of that store, without user and password; stored in Redis for people.
        reader: reads the wheel queue; its namespace begins the keys.
        transport_options: Celery's ``broker_transport_options``.
        ssl: Celery's ``broker_use_ssl``.
        monotonic: seconds, for the age of binding sets.
    """

    def __init__(
        self,
        url: str,
        *,
        store_uuid: str,
        store_place: str,
        reader: QueuedMessageReader,
        transport_options: Mapping[str, Any] | None = None,
        ssl: Mapping[str, Any] | bool | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        options = transport_options or {}
        link = connect(url, options, ssl)
        self._client = link.client
        self._server = link.server
        self._uuid = store_uuid
        self._place = store_place
        self._reader = reader
        self._layout = Layout.from_options(options, link.db)
        bindings = Bindings(self._read_bindings, self._layout.sep, monotonic)
        self._router = RedisRouter(self._layout, bindings, reader.namespace)
        self._adopted: dict[int, int] = {}  #: shard → epoch, until ``leave``
        self.can_wait = True  #: until Redis refuses BLMOVE; each adoption tries again
        self._serial = 0
        self._serial_lock = threading.Lock()

    @property
    def fences(self) -> Literal[True]:
        return True

    # -- the offsets ---------------------------------------------------------------------------------

    def adopt(self, shard: int, epoch: int) -> dict[int, BrokerOffset]:
        found = self._adopt(shard, epoch, "adopting")
        self._adopted[shard], self.can_wait = epoch, True
        return offsets.read_lanes(found)

    def claim(self, shard: int) -> None:
        """Make this store the owner of the shard's offsets. Raises StoreConflict while another store's holder lives.

        Afterwards any epoch may adopt. The offsets of the other store are deleted; its pending tasks stay in it.
        """
        self._adopt(shard, 0, "claiming", str(OCCUPIED_MS))

    def _adopt(self, shard: int, epoch: int, doing: str, claim: str = "") -> Sequence[bytes]:
        with redis_errors(self._server, f"{doing} shard {shard}"):
            word, rest = scripts.ADOPT(
                self._client, [self._offset_key(shard)], [*self._holder(epoch), self._place, claim]
            )
        if word == "conflict":
            uuid, place, silent_ms = (part.decode("utf-8", "replace") for part in rest)
            raise self._conflict(shard, Owner(uuid, place, int(silent_ms)))
        if word == "fenced" and claim:
            return ()  # this store owns the offsets already
        if word == "fenced":
            raise self._fenced(shard, epoch, f"epoch {int(rest)} holds it")
        return cast(Sequence[bytes], rest)

    def owner(self, shard: int) -> Owner | None:
        """Return the store to which the shard's offsets belong; None where nothing was ever adopted."""
        with redis_errors(self._server, f"reading the owner of shard {shard}"):
            uuid, place, seen = cast(
                list[bytes | None], self._client.hmget(self._offset_key(shard), ["uuid", "place", "seen"])
            )
            if uuid is None:
                return None
            silent_ms = self.now_ms() - int(seen or 0)
        return Owner(uuid.decode("utf-8", "replace"), (place or b"").decode("utf-8", "replace"), silent_ms)

    def set_offset(self, shard: int, epoch: int, lane: int, offset: Position) -> None:
        values = offsets.encode_position(offset), "{}", ""
        fields = [text for pair in zip(offsets.lane_fields(lane), values, strict=True) for text in pair]
        self._change(shard, epoch, f"setting the offset of lane {lane} of shard {shard}", [], fields)

    def drop_lanes(self, shard: int, epoch: int, lanes: Sequence[int]) -> None:
        dropped = [field for lane in lanes for field in offsets.lane_fields(lane)]
        self._change(shard, epoch, f"forgetting {len(lanes)} lanes of shard {shard}", dropped, [])

    def _change(self, shard: int, epoch: int, doing: str, dropped: Sequence[str], fields: Sequence[str]) -> None:
        # The lock is held until the answer: Redis must see the serials of two threads in their order.
        with self._serial_lock, redis_errors(self._server, doing):
            self._serial = max(self._serial + 1, time.monotonic_ns())  # also above an earlier RedisBroker's serials
            serial = offsets.encode_number("serial", self._serial)
            arguments = [*self._holder(epoch), serial, str(len(dropped)), *dropped, *fields]
            word, rest = scripts.CHANGE(self._client, [self._offset_key(shard)], arguments)
        if word != "changed":
            raise self._refused(shard, epoch, word, rest)

    def verify(self, shard: int, epoch: int, confirmed: int) -> None:
        number = offsets.encode_number("confirmed", confirmed)
        with redis_errors(self._server, f"verifying the last chunk of shard {shard}"):
            word, rest = scripts.VERIFY(self._client, [self._offset_key(shard)], [*self._holder(epoch), number])
        if word != "verified":
            raise self._refused(shard, epoch, word, rest)

    def verified(self, chunks: Sequence[ConfirmedChunk]) -> set[int]:
        pipeline = self._client.pipeline(transaction=False)
        for shard, epoch, confirmed in chunks:
            arguments = [*self._holder(epoch), offsets.encode_number("confirmed", confirmed)]
            pipeline.evalsha(scripts.VERIFY.sha, 1, self._offset_key(shard), *arguments)
        with redis_errors(self._server, f"verifying the last chunks of {len(chunks)} shards"):
            answers = pipeline.execute(raise_on_error=False)
        return {chunk.shard for chunk, answer in zip(chunks, answers, strict=True) if answer == [b"verified"]}

    def publish(self, chunk: Chunk) -> Published:
        if not chunk.after < chunk.upto:
            raise ValueError(f"upto must be after {tuple(chunk.after)}, got {tuple(chunk.upto)}")
        move = [
            offsets.encode_number("number", chunk.number),
            *offsets.lane_fields(chunk.lane),
            offsets.encode_position(chunk.after),
            offsets.encode_position(chunk.upto),
            offsets.encode_since(chunk.checksum),
        ]
        with redis_errors(self._server, f"publishing {len(chunk.rows)} messages of shard {chunk.shard}"):
            call = publish_call(chunk.rows, self._router, chunk.now_ms)
            word, rest = scripts.PUBLISH(
                self._client,
                [self._offset_key(chunk.shard), *call.keys()],
                [*self._holder(chunk.epoch), *move, *call.arguments()],
            )
        if word == "inside":
            logger.error(
                "the offset of lane %d of shard %d stands at %s, inside the chunk from %s to %s: adopt and compare",
                chunk.lane,
                chunk.shard,
                tuple(offsets.decode_position(rest)),
                tuple(chunk.after),
                tuple(chunk.upto),
                extra={"action": "publish", "shard": chunk.shard, "lane": chunk.lane, "epoch": chunk.epoch},
            )
        failed = offsets.decode_failed(rest) if word in ("published", "already") else {}
        return Published(_RESULTS[word], failed)

    # -- the wheel queue -----------------------------------------------------------------------------

    def peek(self, shard: int, max_count: int, max_bytes: int) -> Peeked:
        if shard not in self._adopted:
            raise not_adopted(shard)
        with redis_errors(self._server, f"reading the wheel queue of shard {shard}"):
            found, more = read_oldest(self._client, self._queue_key(shard), max_count, max_bytes)
        return Peeked([self.decode(raw) for raw in found], proof_of(found), more)

    def trim(self, shard: int, epoch: int, token: object) -> bool:
        proof = cast(Proof, token)
        if not proof.length:
            return True
        if shard not in self._adopted:
            return False
        keys = [self._queue_key(shard), self._offset_key(shard)]
        with redis_errors(self._server, f"trimming the wheel queue of shard {shard}"):
            word, rest = scripts.TRIM(self._client, keys, [*self._holder(epoch), *proof])
        if word not in ("trimmed", "changed"):
            raise self._refused(shard, epoch, word, rest)
        return word == "trimmed"

    def leave(self, shard: int, epoch: int) -> None:
        if self._adopted.get(shard, epoch + 1) <= epoch:
            self._adopted.pop(shard, None)

    def await_message(self, shard: int, timeout_ms: int) -> bool:
        """Move the oldest message of the wheel queue to its own place: Redis answers as soon as there is one.

        The edge cannot wait where Redis refuses BLMOVE: the server is older than 6.2, a proxy does not pass blocking
        commands on, or the user may not call it.
        """
        if shard not in self._adopted:
            return False
        key, own_s = self._queue_key(shard), self._client.connection_pool.connection_kwargs.get("socket_timeout")
        timeout_s = min(timeout_ms / 1_000, own_s / 2 if own_s else math.inf)
        with redis_errors(self._server, f"waiting for a message of shard {shard}"):
            try:
                found = self._client.blmove(key, key, cast(int, timeout_s), "RIGHT", "RIGHT")
            except ResponseError as error:
                if not refuses_command(error):
                    raise
                found, self.can_wait = None, False
        return found is not None

    def depth(self, shard: int) -> int:
        with redis_errors(self._server, f"counting the wheel queue of shard {shard}"):
            return self._client.llen(self._queue_key(shard))

    def oldest(self, shard: int) -> Message | Unreadable | None:
        with redis_errors(self._server, f"reading the oldest message of shard {shard}"):
            raw = cast(bytes | None, self._client.lindex(self._queue_key(shard), -1))
        return None if raw is None else self.decode(raw)

    def decode(self, raw: bytes) -> Message | Unreadable:
        return self._reader.decode(raw)

    # -- the server ----------------------------------------------------------------------------------

    def now_ms(self) -> int:
        with redis_errors(self._server, "reading its clock"):
            seconds, microseconds = self._client.time()
        return seconds * 1000 + microseconds // 1000

    def info(self) -> dict[str, str | None]:
        """Return the settings that decide whether the server keeps its data; None for a setting that it hides."""
        return {
            "maxmemory_policy": self._server_setting(self._client.info, "memory", "maxmemory_policy"),
            "aof_enabled": self._server_setting(self._client.info, "persistence", "aof_enabled"),
            "appendfsync": self._server_setting(self._client.config_get, "appendfsync", "appendfsync"),
        }

    def _server_setting(self, read: Callable[[str], Any], section: str, field: str) -> str | None:
        with redis_errors(self._server, f"reading its {section}"):
            try:
                found = read(section).get(field)
            except ResponseError:  # hosted servers mostly allow neither INFO nor CONFIG
                return None
        return None if found is None else str(found)

    def close(self) -> None:
        # A call under way, mostly ``await_message`` of a thread that stops, ends by itself.
        self._client.connection_pool.disconnect(inuse_connections=False)

    # -- inside ------------------------------------------------------------------------------------

    def _read_bindings(self, exchanges: Sequence[str]) -> list[Iterable[bytes] | Exception]:
        pipeline = self._client.pipeline(transaction=False)
        for exchange in exchanges:
            pipeline.smembers(self._layout.binding_key(exchange))
        answers = pipeline.execute(raise_on_error=False)
        for answer in answers:
            # A key that is no set is that exchange's fault; any other error is the server's, and ends the call.
            if isinstance(answer, Exception) and "WRONGTYPE" not in str(answer):
                raise answer
        return cast(list[Iterable[bytes] | Exception], answers)

    def _holder(self, epoch: int) -> list[str]:
        return [self._uuid, offsets.encode_number("epoch", epoch)]

    def _offset_key(self, shard: int) -> str:
        return offsets.offset_key(self._layout.prefix, self._reader.namespace, shard)

    def _queue_key(self, shard: int) -> str:
        return self._layout.prefix + wheel_queue_name(self._reader.namespace, shard)

    def _refused(self, shard: int, epoch: int, word: str, rest: bytes | None) -> Fenced | OffsetLost:
        if word == "missing":
            return OffsetLost(
                f"{self._server} has no offset of epoch {epoch} for shard {shard} (none, an older one, or another "
                f"store's); nothing was changed; the shard must be adopted anew; unless the server is new or was "
                f"emptied, check its persistence and eviction policy"
            )
        why = "a later request came before this one" if word == "late" else f"epoch {int(rest or 0)} holds it"
        return self._fenced(shard, epoch, why)

    def _fenced(self, shard: int, epoch: int, why: str) -> Fenced:
        return Fenced(
            f"epoch {epoch} does not hold shard {shard} in {self._server}: {why}; nothing was changed, and nothing "
            f"more is published under that epoch; `celery -A proj wheel status` shows the holder"
        )

    def _conflict(self, shard: int, owner: Owner) -> StoreConflict:
        return StoreConflict(
            f"shard {shard} in {self._server} belongs to another store, {owner}, and not to {self._uuid} "
            f"({self._place}); nothing was changed, and this scheduler dispatches nothing; schedulers on one broker "
            "must share one wheel_store (is it a relative path, and this another folder?), or each have a "
            f"wheel_namespace of its own; if the other store is out of use, stop its schedulers and run: {CLAIM}"
        )
