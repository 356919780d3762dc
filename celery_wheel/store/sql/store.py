"""The store on a SQL database: each method of the port is a statement or two, the same for every dialect."""

from __future__ import annotations

import time
from collections.abc import Sequence
from uuid import UUID, uuid5

from sqlalchemy import Connection

from celery_wheel.errors import NothingWritten, StoreError, WheelError
from celery_wheel.store.model import SCHEMA_VERSION, Change, ShardChange
from celery_wheel.store.sql import changes
from celery_wheel.store.sql.browse import Browse
from celery_wheel.store.sql.bulk import SqlBulk, write_bulk
from celery_wheel.store.sql.catalogue import Catalogue
from celery_wheel.store.sql.control import SqlControl
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.dictionaries import Packed
from celery_wheel.store.sql.dispatch import SqlDispatch
from celery_wheel.store.sql.erasure import SqlErasure, write_erasure
from celery_wheel.store.sql.groups import SqlGroups
from celery_wheel.store.sql.handover import SqlHandover
from celery_wheel.store.sql.history import ArchiveFloors, SqlHistory
from celery_wheel.store.sql.holding import SqlHolding
from celery_wheel.store.sql.intake import SqlIntake
from celery_wheel.store.sql.loads import SqlLoads
from celery_wheel.store.sql.maintenance import SqlMaintenance
from celery_wheel.store.sql.repacking import Repacking
from celery_wheel.store.sql.schedules import SqlSchedules
from celery_wheel.store.sql.upkeep import store_row, update_store
from celery_wheel.store.store_model import StoreIdentity
from celery_wheel.values import weighed_parts
from celery_wheel.values.keyring import EncryptionKeys

#: A process or a server that gets little processor time keeps a row locked for longer than ``lock_timeout``. To write
#: again what certainly was not written costs less than an adoption; the fence tells whether the shard is still held.
TRIES = 3

#: Nothing is tried again after so many seconds of waiting: a call must end before its job counts as stuck.
PATIENCE_S = 4.0


#: New and moved rows of a shared transaction, or those of one shard. No lease of its shards is renewed until it ends,
#: and 50,000 rows take longer than a lease: after a stop of the schedulers, all shards together have as many.
SHARED_ROWS = 5_000

_NOT_TRIED = (
    "the change of shard {} was not tried, since those of others waited too long; nothing was written; the shard is "
    "adopted anew"
)


class CommitFailed(StoreError):
    """The commit itself failed: the changes of its transaction may be written or not."""


class SqlStore(
    SqlHolding, SqlIntake, SqlDispatch, SqlGroups, SqlControl, SqlSchedules, SqlErasure, SqlBulk, SqlHistory
):
    """Implements ``celery_wheel.store.ports.Store``, with the parts for people and for work on a whole store."""

    def __init__(self, database: Database, uuid: str, secret: UUID, shards: int, keys: EncryptionKeys) -> None:
        super().__init__(database, Catalogue(database, keys), shards)
        self.catalogue = self._catalogue
        self.uuid, self._secret = uuid, secret
        self.name = database.name  #: in messages: the file's path, or host and database
        self.database = database  #: for the pipeline's source, which reads the tables itself
        self._floors = ArchiveFloors()
        self.browse = Browse(database, self._catalogue, shards)
        self.loads = SqlLoads(database, self._catalogue.seal)
        self.handover = SqlHandover(database, self._catalogue, shards)
        self.repacking = Repacking(database, self._catalogue)
        self.maintenance = SqlMaintenance(database, self._catalogue)

    def derived_id(self, name: str) -> str:
        return str(uuid5(self._secret, name))

    def is_replaced(self) -> bool:
        """Whether the store's file was deleted or replaced; cheap enough to be called before each use."""
        return self._database.is_replaced()

    def apply(self, shard: int, epoch: int, change: Change) -> None:
        self._apply(ShardChange(shard, epoch, change))

    def _apply(self, one: ShardChange, *, hurried: bool = False) -> None:
        packed = self._catalogue.dictionaries.pack(changes.plain(one.change))
        for error in self._write([(one, packed)], hurried=hurried).values():
            raise error
        if one.change.passed_on:
            self._database.ring()

    def apply_all(self, wanted: Sequence[ShardChange]) -> list[WheelError | None]:
        shared = [one for one in wanted if one.change.may_share]
        answers = dict[int, WheelError | None]()
        for some in weighed_parts(shared, lambda one: one.change.accepted + len(one.change.moves), SHARED_ROWS):
            answers |= self._apply_shared(some) if len(some) > 1 else {}
        # A shard whose row is locked comes last: the others wait for all answers.
        waited_s = 0.0
        for hurried in (True, False):
            for one in wanted:
                tried = answers.get(one.shard)
                if one.shard not in answers or isinstance(tried, NothingWritten):
                    if waited_s >= PATIENCE_S:  # the server is silent, or a whole table is locked
                        answers[one.shard] = tried or NothingWritten(_NOT_TRIED.format(one.shard))
                        continue
                    began_s = time.monotonic()
                    answers[one.shard] = answer = self._tried(one, hurried=hurried)
                    waited_s += self._may_pass(answer) * (time.monotonic() - began_s)
        return [answers[one.shard] for one in wanted]

    def _tried(self, one: ShardChange, *, hurried: bool) -> WheelError | None:
        try:
            self._apply(one, hurried=hurried)
        except WheelError as error:
            return error
        return None

    def _may_pass(self, error: WheelError | None) -> bool:
        """Whether a call has waited for a server, or for a lock, in vain."""
        cause = None if error is None else error.__cause__
        return isinstance(cause, Exception) and self._database.may_pass(cause)

    def _apply_shared(self, wanted: Sequence[ShardChange]) -> dict[int, WheelError | None]:
        """Apply changes in one transaction; returns their errors by shard, none of those to be applied one by one."""
        try:
            pack = self._catalogue.dictionaries.pack
            fenced = self._write([(one, pack(changes.plain(one.change))) for one in wanted], hurried=True)
        except NothingWritten:
            return {}  # a row of one of the shards is locked
        except StoreError as error:
            # Each by itself would wait for a silent server as long as all; a mistake is only one shard's.
            if self._may_pass(error) or isinstance(error, CommitFailed):
                return dict.fromkeys([one.shard for one in wanted], error)
            return {}
        return {one.shard: fenced.get(one.shard) for one in wanted}

    def _write(self, wanted: Sequence[tuple[ShardChange, Packed]], *, hurried: bool) -> dict[int, WheelError]:
        """Write changes in one transaction, again if it certainly was rolled back; returns the errors of fenced shards.

        ``hurried``: it waits for no lock for long, and is not written again: the rows of other shards are locked, or
        their changes wait. Raises CommitFailed for an error of the commit itself.
        """
        began_s = time.monotonic()
        for tries_left in reversed(range(1 if hurried else TRIES)):
            is_complete = False
            try:
                with self._database.writing(hurried=hurried) as connection:
                    fenced = changes.write(connection, self._statements, self._catalogue, wanted)
                    for (shard, _, change), _ in wanted:
                        if shard not in fenced:
                            write_erasure(connection, self._statements, shard, change)
                            write_bulk(connection, self._statements, shard, change)
                    is_complete = True
                break
            except StoreError as error:
                if is_complete:  # also where the session ended after its commit
                    raise CommitFailed(str(error)) from error.__cause__
                waits = time.monotonic() - began_s < PATIENCE_S
                if not (isinstance(error, NothingWritten) and tries_left and waits):
                    raise
        return fenced

    def repack(self, shard: int, epoch: int) -> int | None:
        return self.repacking.step(shard, epoch)

    def close(self) -> None:
        self._database.close()

    def identity(self) -> StoreIdentity:
        """Read the store's identity, by which a broker tells it from a copy."""
        return StoreIdentity(self.uuid, *self._database.identity())

    def is_as_opened(self) -> bool:
        """Whether the database still has the opened store: not emptied, not made anew, with as many shards."""
        with self._database.reading() as connection:
            found = connection.execute(store_row("uuid", "shards", "schema_version")).one_or_none()
        if found is None:
            return False
        is_same = (str(UUID(str(found.uuid))), found.shards) == (self.uuid, self.shards)
        return is_same and found.schema_version == SCHEMA_VERSION  # of a store that was moved, it is another

    def brokers(self) -> set[str]:
        """Return the places of the broker to which its schedulers dispatch; none before the first of them ran."""
        with self._database.reading() as connection:
            return _lines(connection)

    def add_brokers(self, places: set[str]) -> None:
        """Record more places of that broker."""
        with self._database.writing() as connection:
            connection.execute(update_store(brokers="\n".join(sorted(_lines(connection) | places))))


def _lines(connection: Connection) -> set[str]:
    """Return the places of the store's broker."""
    return set((connection.execute(store_row("brokers")).scalar_one_or_none() or "").splitlines())
