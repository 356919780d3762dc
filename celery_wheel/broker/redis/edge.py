"""The broker edge for Redis: implements ``engine.port.FencingBroker``, mostly with one round trip for a call.

Promises: a chunk is published exactly once, in order, as long as Redis loses no acknowledged write, since one script
pushes its messages and moves the offset of its lane; a loss is noticed (ROLLED_BACK, MISSING, OffsetLost). An older
epoch changes nothing, and another store adopts nothing. A row that its queue does not take is reported, never dropped.
A row with several queues, one of which is no list, goes to none of them. A key that is not a list is not pushed to. The
expiry of a list is only ever made longer. All methods are thread-safe.

Non-promises: fanout is PUBLISH, so only subscribers get it, and after a rollback a repeated chunk may reach them twice.
``publish`` sends all its rows in one request: the caller bounds a chunk's bytes.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import methodcaller
from typing import Any, Literal, NamedTuple, cast

from redis.exceptions import ResponseError

from celery_wheel.broker import wheel_queue_name
from celery_wheel.broker.errors import not_adopted
from celery_wheel.broker.owner import OCCUPIED_MS, Owner, other_copy, other_store
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.broker.redis import connect, keys
from celery_wheel.broker.redis.connect import Operation, RedisRequest, redis_errors
from celery_wheel.broker.redis.publish import publish_call
from celery_wheel.broker.redis.replies import END, Cut
from celery_wheel.broker.redis.routing import Bindings, RedisRouter
from celery_wheel.engine.port import BrokerOffset, Chunk, ConfirmedChunk, Peeked, Published, PublishResult
from celery_wheel.errors import BrokerError, Fenced, OffsetLost, StoreConflict
from celery_wheel.store.model import Message, Position, Unreadable
from celery_wheel.store.ports import StoreIdentity
from celery_wheel.store.store_model import EPOCH_LEAP
from celery_wheel.values import weighed_parts
from celery_wheel.values.format import format_duration
from celery_wheel.values.log import get_logger

#: Length of a message's tail, and the text in kombu's messages before the tag that makes each tail unique.
TAIL_BYTES, TAG = 128, b', "delivery_tag": "'

#: Messages of one LRANGE at most, and of the first one of a read: what came before says little of what comes.
SLICE, FIRST = 512, 64

#: Bytes of the messages that one pipeline publishes, beside its first chunk.
PIPELINE_BYTES = 4 * 2**20


logger = get_logger(__name__)


_RESULTS = {
    "published": PublishResult.PUBLISHED,
    "already": PublishResult.ALREADY,
    "rolled back": PublishResult.ROLLED_BACK,
    # No holder leaves an offset inside a chunk. The remedy is that of a rollback, whatever the cause: adopt, compare.
    "inside": PublishResult.ROLLED_BACK,
    "fenced": PublishResult.FENCED,
    "missing": PublishResult.MISSING,
}


class Proof(NamedTuple):
    """The token of a peek, which ``trim.lua`` compares. Two copies of one message count as equal."""

    length: int
    digest: str
    tail: int


def read_oldest(key: str, max_count: int, max_bytes: int, size: int) -> Operation[tuple[list[bytes], bool, int]]:
    """Return the oldest messages, whether the queue has more than the bounds allow, and the bytes that were weighed.

    The list is read in slices from the old end, the first of ``size``, each up to twice the one before, so that large
    messages are not read far beyond the bounds; a far too large one counts with its whole size, and is a ``Cut``. The
    read need not be atomic: only a holder removes messages from this end, and ``trim`` compares the proof.
    """
    found: list[bytes] = []
    weight = 0
    while len(found) < max_count and weight < max_bytes:
        slice_ = yield RedisRequest(methodcaller("lrange", key, -(len(found) + size), -(len(found) + 1)))
        for raw in reversed(slice_):
            weight += raw.size if type(raw) is Cut else len(raw)
            if found and weight > max_bytes:
                return found, True, weight
            found.append(raw)
        if len(slice_) < size:
            return found, False, weight
        fitting = (max_bytes - weight) * len(found) // max(1, weight)
        size = max(1, min(2 * size, SLICE, max_count - len(found), fitting))
    length: int = yield RedisRequest(methodcaller("llen", key))
    return found, length > len(found), weight


def proof_of(found: Sequence[bytes]) -> Proof:
    """Return the proof of these messages, oldest first."""
    tail = TAIL_BYTES
    ends = [(raw.size, raw.end) if type(raw) is Cut else (len(raw), raw) for raw in found]
    marks = [b"%d:%b" % (size, end[-tail:]) for size, end in ends]
    if not all(TAG in mark for mark in marks):
        tail = min(END, max(map(len, found)))  # only a holder takes messages from this end of the list
        marks = [b"%d:%b" % (size, end[-tail:]) for size, end in ends]
    return Proof(len(found), hashlib.sha1(b"".join(marks), usedforsecurity=False).hexdigest(), tail)


def _bytes_to_publish(call: tuple[Any, ...]) -> int:
    return sum(row.size for one in call if isinstance(one, Chunk) for row in one.rows)


class Copy(NamedTuple):
    """Another copy of the store."""

    place: str
    seen: str  #: its last sign of life
    at_work: bool  #: this copy waits until a person decides


class RedisBroker:
    """Implements ``FencingBroker`` for a Redis server that kombu's Redis transport uses as well.

    The offsets' positions belong to ``store``; the namespace of ``reader`` begins the keys.
    """

    fences: Literal[True] = True

    def __init__(
        self,
        url: str,
        *,
        store: StoreIdentity,
        reader: QueuedMessageReader,
        transport_options: Mapping[str, Any] | None = None,
        ssl: Mapping[str, Any] | bool | None = None,
    ) -> None:
        options = transport_options or {}
        link = connect.connect(url, options, ssl, reader.max_kept_bytes)
        self._client, self._server = link.client, link.server
        self._store, self._reader = store, reader
        self._layout = keys.Layout.from_options(options, link.db)
        bindings = Bindings(self._read_bindings, self._layout.sep, time.monotonic)
        self._router = RedisRouter(self._layout, bindings, reader.destinations.is_reserved)
        self._adopted: dict[int, int] = {}  #: shard → epoch, until ``leave``
        self._sizes: dict[int, int] = {}  #: shard → messages of the first slice of its next read
        self._copies: dict[int, Copy] = {}  #: shard → another copy of the store, which was found to hold it
        self.can_wait = True  #: until Redis refuses BLMOVE; each adoption tries again
        self._serial = 0
        self._serial_lock = threading.Lock()
        self._closed = False

    def adopt(self, shard: int, epoch: int) -> dict[int, BrokerOffset]:
        store, copy = self._store, self._copies.get(shard)
        arguments = [*self._holder(epoch), store.address, store.place, str(OCCUPIED_MS), str(EPOCH_LEAP // 2)]
        with redis_errors(self._server, f"adopting shard {shard}"):
            seen_at_work = "1" if copy is not None and copy.at_work else ""
            word, rest = connect.ADOPT(self._client, [self._offset_key(shard)], [*arguments, seen_at_work])
        if word == "conflict":
            raise other_store(self._server, shard, _owner(rest), self._store)
        if word == "copy":
            raise self._copied(shard, rest)
        if word == "fenced":
            raise self._fenced(shard, epoch, rest)
        self._copies.pop(shard, None)
        self._adopted[shard], self.can_wait = epoch, True
        return keys.read_lanes(cast(Sequence[bytes], rest))

    def claim(self, shard: int, lanes: Mapping[int, Position]) -> None:
        """Make this store the owner of the shard's offsets. Raises StoreConflict while another store's holder lives.

        Afterwards any epoch may adopt. The offsets of the other store are deleted, and replaced by ``lanes``, those of
        this store; the pending tasks of the other stay in it.
        """
        fields = ["uuid", self._store.uuid, "epoch", self._holder(0)[1], "address", self._store.address]
        fields += ["place", self._store.place, "last", keys.encode_number("last", 0)]
        for lane, offset in lanes.items():
            fields += keys.lane_values(lane, offset)
        with redis_errors(self._server, f"claiming shard {shard}"):
            arguments = [self._store.uuid, str(OCCUPIED_MS), *fields]
            word, rest = connect.CLAIM(self._client, [self._offset_key(shard)], arguments)
        if word == "conflict":
            raise other_store(self._server, shard, _owner(rest), self._store)

    def owner(self, shard: int) -> Owner | None:
        """Return the store that last adopted or claimed the shard; None where none did."""
        names = ["uuid", "place", "seen", "epoch", "address", "refused", "refused_at"]
        with redis_errors(self._server, f"reading the owner of shard {shard}"):
            found = cast(list[bytes | None], self._client.hmget(self._offset_key(shard), names))
            if found[0] is None:
                return None
            now_ms = self.now_ms()
        uuid, place, seen, fence, address, refused, refused_at = (
            (one or b"").decode("utf-8", "replace") for one in found
        )
        just_now = now_ms - int(refused_at or 0) < 60_000  # a refused copy tries again every two seconds
        instance = keys.decode_fence(fence)[1]
        return Owner(uuid, place, now_ms - int(seen or 0), instance, address, refused if just_now else "")

    def set_offset(self, shard: int, epoch: int, lane: int, offset: Position) -> None:
        doing = f"setting the offset of lane {lane} of shard {shard}"
        self._change(shard, epoch, doing, [], keys.lane_values(lane, offset))

    def drop_lanes(self, shard: int, epoch: int, lanes: Sequence[int]) -> None:
        dropped = [field for lane in lanes for field in keys.lane_fields(lane)]
        self._change(shard, epoch, f"forgetting {len(lanes)} lanes of shard {shard}", dropped, [])

    def _change(self, shard: int, epoch: int, doing: str, dropped: Sequence[str], fields: Sequence[str]) -> None:
        # The lock is held until the answer: Redis must see the serials of two threads in their order.
        with self._serial_lock, redis_errors(self._server, doing):
            self._serial = max(self._serial + 1, time.monotonic_ns())  # also above an earlier RedisBroker's serials
            serial = keys.encode_number("serial", self._serial)
            arguments = [*self._holder(epoch), serial, str(len(dropped)), *dropped, *fields]
            word, rest = connect.CHANGE(self._client, [self._offset_key(shard)], arguments)
        if word != "changed":
            raise self._refused(shard, epoch, word, rest)

    def verify(self, shard: int, epoch: int, confirmed: int, accepted: int = 0) -> None:
        numbers = keys.encode_number("confirmed", confirmed), keys.encode_number("accepted", accepted)
        with redis_errors(self._server, f"verifying the last chunk of shard {shard}"):
            word, rest = connect.VERIFY(self._client, [self._offset_key(shard)], [*self._holder(epoch), *numbers])
        if word != "verified":
            raise self._refused(shard, epoch, word, rest)

    def verified(self, chunks: Sequence[ConfirmedChunk]) -> set[int]:
        pipeline = self._client.pipeline(transaction=False)
        for shard, epoch, confirmed, accepted in chunks:
            numbers = keys.encode_number("confirmed", confirmed), keys.encode_number("accepted", accepted)
            arguments = [*self._holder(epoch), *numbers]
            pipeline.evalsha(connect.VERIFY.sha, 1, self._offset_key(shard), *arguments)
        with redis_errors(self._server, f"verifying the last chunks of {len(chunks)} shards"):
            answers = pipeline.execute(raise_on_error=False)
        return {chunk.shard for chunk, answer in zip(chunks, answers, strict=True) if answer == [b"verified"]}

    def accepted(self, shard: int) -> int:
        with redis_errors(self._server, f"reading the accepted messages of shard {shard}"):
            return int(cast(bytes | None, self._client.hget(self._offset_key(shard), "accepted")) or 0)

    def set_accepted(self, shard: int, epoch: int, accepted: int) -> None:
        fields = ["accepted", keys.encode_number("accepted", accepted)]
        self._change(shard, epoch, f"setting the accepted messages of shard {shard}", [], fields)

    def together(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Make the calls by pipelines, up to one that the server does not answer: each edge prepares its own."""
        found = list[Any]()
        for some in weighed_parts(calls, _bytes_to_publish, PIPELINE_BYTES):
            found += connect.ask_all(self._client, [edge._operations[name](*given) for edge, name, *given in some])
            if all(map(connect.is_silent, found[-len(some) :])):
                break
        unasked = BrokerError(f"{self._server} has not answered other shards; nothing was sent")
        return found + [unasked] * (len(calls) - len(found))

    @property
    def _operations(self) -> dict[str, Callable[..., Operation[Any]]]:
        return {"publish": self._publish, "peek": self._peek, "trim": self._trim}

    def publish(self, chunk: Chunk) -> Published:
        return connect.ask(self._client, self._publish(chunk))

    def _publish(self, chunk: Chunk) -> Operation[Published]:
        if not chunk.after < chunk.upto:
            raise ValueError(f"upto must be after {tuple(chunk.after)}, got {tuple(chunk.upto)}")
        move = [
            keys.encode_number("number", chunk.number),
            keys.encode_number("confirmed", chunk.confirmed),
            *keys.lane_fields(chunk.lane),
            keys.encode_position(chunk.after),
            keys.encode_position(chunk.upto),
            keys.encode_since(chunk.checksum),
        ]
        counted = [(queue, key) for queue in chunk.queues for key in self._layout.list_keys(queue)]
        with redis_errors(self._server, f"publishing a chunk of {len(chunk.rows)} messages of shard {chunk.shard}"):
            call = publish_call(chunk.rows, self._router, chunk.now_ms)
            word, rest = yield connect.PUBLISH.request(
                [self._offset_key(chunk.shard), *call.keys(), *(key for _, key in counted)],
                [*self._holder(chunk.epoch), *move, *call.arguments(len(counted))],
            )
        if word == "inside":
            logger.error(
                "the offset of lane %d of shard %d stands at %s, inside the chunk from %s to %s: adopt and compare",
                chunk.lane,
                chunk.shard,
                tuple(keys.decode_position(rest)),
                tuple(chunk.after),
                tuple(chunk.upto),
                extra={"action": "publish", "shard": chunk.shard, "lane": chunk.lane, "epoch": chunk.epoch},
            )
        report, *lengths = rest if word == "published" else (rest,)
        failed = keys.decode_failed(report) if word in ("published", "already") else {}
        ready = dict.fromkeys(chunk.queues, 0) if lengths else {}
        for (queue, _), length in zip(counted, lengths, strict=False):  # none but of a chunk that was published
            ready[queue] += length
        return Published(_RESULTS[word], failed, ready)

    def peek(self, shard: int, max_count: int, max_bytes: int) -> Peeked:
        return connect.ask(self._client, self._peek(shard, max_count, max_bytes))

    def _peek(self, shard: int, max_count: int, max_bytes: int) -> Operation[Peeked]:
        if shard not in self._adopted:
            raise not_adopted(shard)
        with redis_errors(self._server, f"reading the wheel queue of shard {shard}"):
            size = min(max_count, self._sizes.pop(shard, 1))  # after a read that failed: one message
            found, more, weight = yield from read_oldest(self._queue_key(shard), max_count, max_bytes, size)
        self._sizes[shard] = max(1, min(FIRST, 2 * len(found), max_bytes * len(found) // max(1, weight)))
        return Peeked([self._message(raw) for raw in found], proof_of(found), more)

    def trim(self, shard: int, epoch: int, token: object, accepted: int = 0) -> bool:
        return connect.ask(self._client, self._trim(shard, epoch, token, accepted))

    def _trim(self, shard: int, epoch: int, token: object, accepted: int = 0) -> Operation[bool]:
        proof = cast(Proof, token)
        if not proof.length:
            return True
        if shard not in self._adopted:
            return False
        touched = [self._queue_key(shard), self._offset_key(shard)]
        with redis_errors(self._server, f"trimming the wheel queue of shard {shard}"):
            arguments: list[str | bytes | int] = [
                *self._holder(epoch),
                *proof,
                keys.encode_number("accepted", accepted),
            ]
            word, rest = yield connect.TRIM.request(touched, arguments)
        if word not in ("trimmed", "changed"):
            raise self._refused(shard, epoch, word, rest)
        return bool(word == "trimmed")

    def leave(self, shard: int, epoch: int) -> None:
        if self._adopted.get(shard, epoch + 1) <= epoch:
            self._adopted.pop(shard, None)
            self._sizes.pop(shard, None)

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
                if not connect.refuses_command(error):
                    raise
                found, self.can_wait = None, False
            finally:
                if self._closed:  # meanwhile
                    self.close()
        return found is not None

    def depth(self, shard: int) -> int:
        with redis_errors(self._server, f"counting the wheel queue of shard {shard}"):
            return self._client.llen(self._queue_key(shard))

    def ready(self, queues: Sequence[str]) -> dict[str, int]:
        with redis_errors(self._server, f"counting the messages of {', '.join(queues[:3])}"):
            pipeline = self._client.pipeline(transaction=False)
            lists = {queue: self._layout.list_keys(queue) for queue in queues}
            for key in chain.from_iterable(lists.values()):
                pipeline.llen(key)
            counts = iter(pipeline.execute(raise_on_error=False))
        # A key of another type is no queue: a message for it is rejected, and does not wait.
        found = {queue: [next(counts) for _ in keys_] for queue, keys_ in lists.items()}
        return {queue: sum(one for one in of if isinstance(one, int)) for queue, of in found.items()}

    def oldest(self, shard: int) -> Message | Unreadable | None:
        with redis_errors(self._server, f"reading the oldest message of shard {shard}"):
            raw = cast(bytes | None, self._client.lindex(self._queue_key(shard), -1))
        return None if raw is None else self._message(raw)

    def _message(self, raw: bytes) -> Message | Unreadable:
        return self._reader.reject_cut(raw.size, bytes(raw), raw.end) if type(raw) is Cut else self._reader.decode(raw)

    def decode(self, raw: bytes) -> Message | Unreadable:
        return self._reader.decode(raw)

    def now_ms(self) -> int:
        with redis_errors(self._server, "reading its clock"):
            seconds, microseconds = self._client.time()
        return seconds * 1000 + microseconds // 1000

    def keep_alive(self) -> None: ...

    def info(self) -> dict[str, str | None]:
        """Return the settings that decide whether the server keeps its data; None for a setting that it hides."""
        sources: dict[str, tuple[Callable[[str], Any], str]] = {
            "maxmemory_policy": (self._client.info, "memory"),
            "aof_enabled": (self._client.info, "persistence"),
            "appendfsync": (self._client.config_get, "appendfsync"),
        }
        found: dict[str, str | None] = dict.fromkeys(sources)
        for name, (read, section) in sources.items():
            # Hosted servers mostly allow neither INFO nor CONFIG.
            with redis_errors(self._server, f"reading its {section}"), suppress(ResponseError):
                value = read(section).get(name)
                found[name] = None if value is None else str(value)
        return found

    def close(self) -> None:
        self._closed = True
        # The connection of a call under way, mostly ``await_message`` of a thread that stops, ends with that call.
        self._client.connection_pool.disconnect(inuse_connections=False)

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
        return [self._store.uuid, keys.encode_fence(epoch, self._store.instance)]

    def _offset_key(self, shard: int) -> str:
        return keys.offset_key(self._layout.prefix, self._reader.namespace, shard)

    def _queue_key(self, shard: int) -> str:
        return self._layout.prefix + wheel_queue_name(self._reader.namespace, shard)

    def _refused(self, shard: int, epoch: int, word: str, rest: bytes | None) -> Fenced | OffsetLost:
        if word == "missing":
            return OffsetLost(
                f"{self._server} has no offset of epoch {epoch} for shard {shard} (none, an older one, or another "
                f"store's); nothing was changed; the shard must be adopted anew; unless the server is new or was "
                f"emptied, check its persistence and eviction policy"
            )
        return self._fenced(shard, epoch, None if word == "late" else rest)

    def _fenced(self, shard: int, epoch: int, holder: bytes | None) -> Fenced:
        why = "a later request came before this one"
        if holder is not None:
            why = f"epoch {keys.decode_fence(holder.decode())[0]} holds it"
        return Fenced(
            f"epoch {epoch} does not hold shard {shard} in {self._server}: {why}; nothing was changed, and nothing "
            f"more is published under that epoch; `celery -A proj wheel status` shows the holder"
        )

    def _copied(self, shard: int, rest: Sequence[bytes]) -> StoreConflict:
        """Note the copy of the store that holds the shard, and return the error that names both.

        A copy that has given a sign of life between two answers is at work, and this one waits until a person decides:
        also while the other is restarted, and when Redis is emptied. One elsewhere is never succeeded by itself.
        """
        place, seen, elsewhere, *silent_ms = (part.decode("utf-8", "replace") for part in rest)
        known = self._copies.get(shard)
        if seen != "0":
            moved_on = known is not None and seen != known.seen
            at_work = elsewhere == "1" or moved_on or (known is not None and known.at_work)
            known = self._copies[shard] = Copy(place, seen, at_work)
        heard = f", last seen {format_duration(int(silent_ms[0]))} ago" if silent_ms else ""
        return other_copy(self._server, shard, f"{known.place if known else place}{heard}", self._store)


def _owner(rest: Sequence[bytes]) -> Owner:
    uuid, place, silent_ms = (part.decode("utf-8", "replace") for part in rest)
    return Owner(uuid, place, int(silent_ms))
