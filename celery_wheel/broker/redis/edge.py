"""The broker edge for Redis: what ``engine.port.Broker`` asks, in one round trip each.

::

    producers ──LPUSH──► wheel.3 ──peek──► engine ──commit──► store
                            └───────trim──────┘
                                                       ┌─ push into mail, mail\\x06\\x166, news, …
    engine ──publish(from, to, rows)──► publish.lua ───┤                                            one script
                                                       └─ wheel.offset.3: lane:0 = to, failed:0 = …

Promises: a chunk is published exactly once, in order, as long as Redis loses no acknowledged write; what it lost is
noticed (ROLLED_BACK, MISSING, OffsetLost). An older epoch changes nothing. A row that its queue would not take is
reported, never dropped. A row with several queues of which one is no list goes to none of them.

Non-promises: fanout is PUBLISH, so who does not listen gets nothing, and a repeated chunk may reach listeners twice
after a rollback. ``publish`` sends all its rows in one request: the caller bounds a chunk's bytes.

All methods may be called from several threads. Files: ``connect`` the client, ``offsets`` the hash, ``*.lua`` what runs
in Redis, ``routing`` and ``bindings`` where a row goes, ``wire`` its bytes, ``chunk`` all of that as arguments,
``faults`` what errors mean.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from celery_wheel.broker.envelope import decode
from celery_wheel.broker.names import wheel_queue_name
from celery_wheel.broker.redis import offsets, scripts
from celery_wheel.broker.redis.bindings import Bindings
from celery_wheel.broker.redis.chunk import make_chunk
from celery_wheel.broker.redis.connect import connect
from celery_wheel.broker.redis.faults import answering
from celery_wheel.broker.redis.layout import Layout
from celery_wheel.broker.redis.routing import Router
from celery_wheel.engine.port import BrokerOffset, Peeked, Published, Since, Verdict
from celery_wheel.errors import BrokerError, Fenced, OffsetLost
from celery_wheel.store.model import Message, Position, Row, Unreadable

logger = logging.getLogger(__name__)

#: Larger than any sane task; what is larger is kept as rejected instead of being parsed.
MAX_MESSAGE_BYTES = 64 * 2**20

#: A holder is heard of twice a second; another store's that was silent for so long is gone.
OCCUPIED_MS = 5_000

_VERDICTS = {
    "published": Verdict.PUBLISHED,
    "already": Verdict.ALREADY,
    "rolled back": Verdict.ROLLED_BACK,
    # No holder ever leaves an offset inside a chunk. Whatever did, it needs what a rollback needs: adopt, and look.
    "inside": Verdict.ROLLED_BACK,
    "fenced": Verdict.FENCED,
    "missing": Verdict.MISSING,
}


#: The end of a message as kombu writes it, and where in it what makes it one of a kind begins.
TAIL_BYTES, TAG = 128, b', "delivery_tag": "'

#: Messages of one LRANGE at most.
SLICE = 512


class Proof(NamedTuple):
    """The token of a peek: what ``trim.lua`` compares. A message that was published twice is twice the same."""

    length: int
    digest: str
    tail: int


class RedisBroker:
    """Implements ``Broker`` for a Redis server that kombu's Redis transport uses as well.

    Args:
        url: the broker URL, as kombu takes it.
        global_keyprefix: comes before every key; the transport option of that name if empty.
        store_uuid: whose positions the offsets are.
        transport_options: Celery's ``broker_transport_options``.
        ssl: Celery's ``broker_use_ssl``.
        max_message_bytes, keep_eta: as ``envelope.decode`` takes them.
        monotonic: seconds, for the age of binding sets.
    """

    def __init__(
        self,
        url: str,
        *,
        store_uuid: str,
        namespace: str = "wheel",
        global_keyprefix: str = "",
        transport_options: Mapping[str, Any] | None = None,
        ssl: Mapping[str, Any] | bool | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        keep_eta: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        options = transport_options or {}
        link = connect(url, options, ssl)
        self._client = link.client
        self._server = link.server
        self._uuid = store_uuid
        self._namespace = namespace
        self._max_message_bytes = max_message_bytes
        self._keep_eta = keep_eta
        self._layout = Layout.from_options(options, link.db, global_keyprefix)
        self._router = Router(self._layout, Bindings(self._read_bindings, self._layout.sep, monotonic))
        self._serial = 0
        self._serial_lock = threading.Lock()

    # -- the offset ----------------------------------------------------------------------------------

    keeps_offset = True

    def adopt(self, shard: int, epoch: int) -> dict[int, BrokerOffset]:
        with answering(self._server, f"adopting shard {shard}"):
            arguments = [*self._holder(epoch), str(OCCUPIED_MS)]
            word, rest = scripts.ADOPT(self._client, [self._offset_key(shard)], arguments)
        if word == "fenced":
            raise self._fenced(shard, epoch, f"epoch {int(rest)} holds it")
        if word == "occupied":
            raise BrokerError(
                f"shard {shard} in {self._server} is in use by another store ({rest.decode('utf-8', 'replace')}); "
                "nothing was changed, and nothing leaves from here; schedulers on one broker must share one store "
                "(is wheel_store a relative path, and this another folder?), or each have its own wheel_namespace"
            )
        if word == "adopted":
            return offsets.read_lanes(rest)
        if rest:
            logger.warning(
                "the offset of shard %d in %s belonged to store %s, which is silent, and now belongs to %s",
                shard,
                self._server,
                rest.decode("utf-8", "replace"),
                self._uuid,
                extra={"action": "adopt", "shard": shard, "epoch": epoch},
            )
        return {}

    def set_offset(self, shard: int, epoch: int, lane: int, offset: Position) -> None:
        fields = [offsets.lane_field(lane), offsets.failed_field(lane), offsets.serial_field(lane)]
        arguments = [*self._holder(epoch), *fields, offsets.encode_position(offset), self._next_serial()]
        with answering(self._server, f"setting the offset of lane {lane} of shard {shard}"):
            word, rest = scripts.SET_OFFSET(self._client, [self._offset_key(shard)], arguments)
        if word != "set":
            raise self._refused(shard, epoch, word, rest)

    def publish(
        self,
        shard: int,
        epoch: int,
        lane: int,
        from_: Position,
        to: Position,
        rows: Sequence[Row],
        now_ms: int,
        since: Since | None = None,
        redelivered: bool = False,
    ) -> Published:
        if not from_ < to:
            raise ValueError(f"to must be after from_ {tuple(from_)}, got {tuple(to)}")
        with answering(self._server, f"publishing {len(rows)} messages of shard {shard}"):
            chunk = make_chunk(rows, self._router, now_ms)
            fields = [offsets.lane_field(lane), offsets.failed_field(lane)]
            move = [*self._holder(epoch), *fields, offsets.encode_position(from_), offsets.encode_position(to)]
            word, rest = scripts.PUBLISH(
                self._client,
                [self._offset_key(shard), *chunk.keys()],
                [*move, *chunk.arguments(), offsets.encode_since(since)],
            )
        if word == "inside":
            logger.error(
                "the offset of lane %d of shard %d stands at %s, inside the chunk from %s to %s: adopt and compare",
                lane,
                shard,
                tuple(offsets.decode_position(rest)),
                tuple(from_),
                tuple(to),
                extra={"action": "publish", "shard": shard, "lane": lane, "epoch": epoch},
            )
        failed = offsets.decode_failed(rest) if word in ("published", "already") else {}
        return Published(_VERDICTS[word], failed)

    # -- the wheel queue ---------------------------------------------------------------------------

    def peek(self, shard: int, max_count: int, max_bytes: int) -> Peeked:
        with answering(self._server, f"reading the wheel queue of shard {shard}"):
            found, more = self._oldest(self._queue_key(shard), max_count, max_bytes)
        return Peeked([self.decode(raw) for raw in found], _proof(found), more)

    def _oldest(self, key: str, max_count: int, max_bytes: int) -> tuple[list[bytes], bool]:
        """Slices from the old end, each twice the one before: many megabytes cost no more reading than they must.

        Not atomic, nor need it be: only a holder takes from this end, and ``trim`` proves what was there. A script
        would be slower: it copies every message twice more.
        """
        found: list[bytes] = []
        weight, size = 0, 1
        while len(found) < max_count:
            slice_ = cast(list[bytes], self._client.lrange(key, -(len(found) + size), -(len(found) + 1)))
            for raw in reversed(slice_):
                if found and weight + len(raw) > max_bytes:
                    return found, True
                found.append(raw)
                weight += len(raw)
            if len(slice_) < size:
                return found, False
            fitting = (max_bytes - weight) * len(found) // max(1, weight)
            size = max(1, min(2 * size, SLICE, max_count - len(found), fitting))
        return found, self._client.llen(key) > len(found)

    def trim(self, shard: int, epoch: int, token: object) -> bool:
        proof = cast(Proof, token)
        if not proof.length:
            return True
        keys = [self._queue_key(shard), self._offset_key(shard)]
        with answering(self._server, f"trimming the wheel queue of shard {shard}"):
            word, rest = scripts.TRIM(self._client, keys, [*self._holder(epoch), *proof])
        if word not in ("trimmed", "changed"):
            raise self._refused(shard, epoch, word, rest)
        return word == "trimmed"

    def leave(self, shard: int, epoch: int) -> None:
        """Nothing: what was peeked is in the queue still."""

    def decode(self, raw: bytes) -> Message | Unreadable:
        return decode(raw, self._max_message_bytes, self._keep_eta)

    # -- the server --------------------------------------------------------------------------------

    def now_ms(self) -> int:
        with answering(self._server, "asking for its time"):
            seconds, microseconds = self._client.time()
        return seconds * 1000 + microseconds // 1000

    def close(self) -> None:
        self._client.connection_pool.disconnect()

    # -- inside ------------------------------------------------------------------------------------

    def _read_bindings(self, exchanges: Sequence[str]) -> list[Iterable[bytes] | Exception]:
        pipeline = self._client.pipeline(transaction=False)
        for exchange in exchanges:
            pipeline.smembers(self._layout.binding_key(exchange))
        answers = pipeline.execute(raise_on_error=False)
        for answer in answers:
            # A key that is no set is that exchange's own fault; everything else is the server's, and is waited for.
            if isinstance(answer, Exception) and "WRONGTYPE" not in str(answer):
                raise answer
        return cast(list[Iterable[bytes] | Exception], answers)

    def _holder(self, epoch: int) -> list[str]:
        return [self._uuid, offsets.encode_number("epoch", epoch)]

    def _offset_key(self, shard: int) -> str:
        return offsets.offset_key(self._layout.prefix, self._namespace, shard)

    def _queue_key(self, shard: int) -> str:
        return self._layout.prefix + wheel_queue_name(self._namespace, shard)

    def _next_serial(self) -> str:
        """Greater than every serial before it, also those of an earlier RedisBroker of this process."""
        with self._serial_lock:
            self._serial = max(self._serial + 1, time.monotonic_ns())
            return offsets.encode_number("serial", self._serial)

    def _refused(self, shard: int, epoch: int, word: str, rest: bytes | None) -> Fenced | OffsetLost:
        if word == "missing":
            return OffsetLost(
                f"{self._server} has no offset of epoch {epoch} for shard {shard} (none, an older one, or another "
                f"store's); nothing was changed; the shard must be adopted anew, and if that was no new or emptied "
                f"server, check its persistence and eviction policy"
            )
        why = "a later request came before this one" if word == "late" else f"epoch {int(rest or 0)} holds it"
        return self._fenced(shard, epoch, why)

    def _fenced(self, shard: int, epoch: int, why: str) -> Fenced:
        return Fenced(
            f"shard {shard} is not epoch {epoch}'s in {self._server}: {why}; nothing was changed, and nothing more "
            f"leaves from this term; see `celery wheel status` for who holds it"
        )


def _proof(found: Sequence[bytes]) -> Proof:
    tail = TAIL_BYTES
    marks = [b"%d:%b" % (len(raw), raw[-tail:]) for raw in found]
    if not all(TAG in mark for mark in marks):
        tail = max(map(len, found))
        marks = [b"%d:%b" % (len(raw), raw) for raw in found]
    return Proof(len(found), hashlib.sha1(b"".join(marks), usedforsecurity=False).hexdigest(), tail)
