"""The holder of a wheel queue on RabbitMQ: a note that names its store, and a sign of life.

::

    wheel.0.holder          durable, one message: the note with the store's identity, the epoch, the name of the sign
    wheel.0.holder.5f1c…    the sign of life: an exclusive queue of the holder's connection, which ends with it
    wheel.0.holder.lock     exclusive while a scheduler reads or replaces the note: two never decide at once

``celery_wheel.broker.owner`` has the rule. RabbitMQ fences nobody: a holder that loses its connection is at work until
its next peek, which finds the note of a copy that came meanwhile. Another store without a sign of life is replaced.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import amqp

from celery_wheel.broker.amqp.link import CONNECTION_ERRORS, AmqpLink
from celery_wheel.broker.owner import OCCUPIED_MS, Owner, other_copy, other_store
from celery_wheel.errors import BrokerError
from celery_wheel.store.ports import StoreIdentity
from celery_wheel.store.store_model import EPOCH_LEAP

logger = logging.getLogger(__name__)

#: Seconds; a server under an alarm accepts no note, and the shard's lease goes on.
PATIENCE_S = 1.0
PAUSE_S = 0.02  #: between two tries to lock the note

_CLASSIC = {"x-queue-type": "classic"}


class HolderNote:
    """The note of one shard; ``queue`` is the name of its wheel queue, ``store`` the one of this process.

    No other code uses ``link``: under an alarm the server reads nothing more from a connection that has published.
    """

    def __init__(self, shard: int, queue: str, link: AmqpLink, store: StoreIdentity) -> None:
        self._shard, self._name = shard, f"{queue}.holder"
        self._link, self._store = link, store

    def take(self, reading: Any, epoch: int) -> None:
        """Sign the note for this store while ``reading`` lives, the connection that reads the wheel queue.

        Raises StoreConflict where another store has it.
        """
        with self._reading() as (channel, notes):
            found = _decode(notes)
            if found is not None:
                self._check(self._owner(found), epoch - int(found["epoch"]))
            sign = f"{self._name}.{secrets.token_hex(8)}"
            reading.channel().queue_declare(sign, exclusive=True, auto_delete=False, arguments=_CLASSIC)
            body = json.dumps({**self._store._asdict(), "epoch": epoch, "sign": sign})
            note = amqp.Message(body.encode(), delivery_mode=2)
            channel.queue_declare(self._name, durable=True, auto_delete=False, arguments=_CLASSIC)
            try:
                channel.basic_publish_confirm(note, routing_key=self._name, confirm_timeout=PATIENCE_S)
                for former in notes:  # after the new one: where this process dies between, the last note counts
                    former.channel.basic_ack(former.delivery_tag)
            except TimeoutError:  # an alarm: the note of before stays, and messages are still accepted
                logger.warning(
                    "%s accepts no note about the holder of shard %d: its memory or disk alarm is on",
                    self._link.describe(),
                    self._shard,
                    extra={"action": "no_note", "shard": self._shard},
                )

    def owner(self) -> Owner | None:
        with self._reading() as (_, notes):
            found = _decode(notes)
            return None if found is None else self._owner(found)

    def _check(self, owner: Owner, ahead: int) -> None:
        store, leap = self._store, EPOCH_LEAP // 2
        if owner.uuid != store.uuid:
            if owner.lives:
                raise other_store(self._link.describe(), self._shard, owner, store)
            logger.warning(
                "shard %d in %s was held by another store, %s, whose pending tasks stay there; now %s holds it",
                self._shard,
                self._link.describe(),
                owner,
                store.place,
                extra={"action": "other_store", "shard": self._shard},
            )
            return
        elsewhere = owner.address != store.address or ahead <= -leap
        if owner.is_copy_of(store) and ahead < leap and (owner.lives or elsewhere):
            raise other_copy(self._link.describe(), self._shard, owner.place, store)

    @contextmanager
    def _reading(self) -> Iterator[tuple[Any, list[Any]]]:
        """Lock the note; yields a channel and the notes, of which the last counts."""
        with self._link.using(f"reading the holder of shard {self._shard}"):
            try:
                yield self._locked(), self._notes()
            finally:
                with suppress(*CONNECTION_ERRORS):
                    self._link.connection.close()  # unlocks, and returns the notes
                self._link.drop()

    def _locked(self) -> Any:
        """Return a channel of the connection that has the lock now: another process has it for some milliseconds."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            channel = self._link.connection.channel()  # the server closes that of a refused declaration
            try:
                channel.queue_declare(f"{self._name}.lock", exclusive=True, auto_delete=False, arguments=_CLASSIC)
            except amqp.exceptions.ResourceLocked as error:
                if time.monotonic() >= until_s:
                    raise BrokerError(
                        f"another process looks who holds shard {self._shard} in {self._link.describe()}; nothing was "
                        "changed; try again"
                    ) from error
                time.sleep(PAUSE_S)
            else:
                return channel

    def _notes(self) -> list[Any]:
        channel, notes = self._link.connection.channel(), list[Any]()
        channel.auto_decode = False
        try:
            while (note := channel.basic_get(self._name, no_ack=False)) is not None:
                notes.append(note)
        except amqp.exceptions.NotFound:  # nothing was ever adopted
            pass
        return notes

    def _owner(self, note: dict[str, Any]) -> Owner:
        silent_ms = 0 if _exists(self._link.connection, str(note["sign"])) else OCCUPIED_MS
        return Owner(str(note["uuid"]), str(note["place"]), silent_ms, str(note["instance"]), str(note["address"]))


def _exists(connection: Any, queue: str) -> bool:
    """Whether a queue of any connection has the name. An exclusive one of another connection is locked."""
    channel = connection.channel()
    try:
        channel.queue_declare(queue, passive=True)
    except amqp.exceptions.NotFound:
        return False
    except amqp.exceptions.ResourceLocked:
        return True
    channel.close()
    return True


def _decode(notes: list[Any]) -> dict[str, Any] | None:
    if not notes:
        return None
    found: dict[str, Any] = json.loads(notes[-1].body)
    return found
