"""The values of a whole store: its identity, leases, server and loads; a drain, a resharding, a move, an archive.

::

    numbers     ─────────────────────────────────────────────────────►   of settlements and outcomes, in one order
                forgotten         archived                    seq
                └ history up to   └ an archive has all        └ the highest number taken
                  it is gone        history up to it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

from celery_wheel.store.model import COMMITTED, DONE, ORIGIN, Position
from celery_wheel.store.schedule_model import Revision, Schedule


class Retention(NamedTuple):
    """The history to keep: what is as young as ``before_ms``, as far as ``max_bytes`` suffices for it."""

    before_ms: int  #: older settlements, by their dispatch, and older outcomes of lane STOPPED are forgotten
    max_bytes: int  #: of all settlements; beyond it the oldest are forgotten, however young
    archived_only: bool = False  #: a settlement stays until an archive has all of it, and keeps all younger settlements
    upto: Mapping[int, Position] = MappingProxyType({})  #: lane → the position after which rows stay
    now_ms: int = 0  #: a run that has a slot of its group after it stays in the store without its row


class ForgetPlace(NamedTuple):
    """The end of what a shorter retention has removed: all earlier history of its queue or task is gone."""

    settlement: int = 0  #: id of the last settlement
    stopped: Position = ORIGIN  #: in lane STOPPED


class Renewal(NamedTuple):
    """The renewal of a shard's lease, with the holder's snapshot; None leaves the one that is stored."""

    shard: int
    epoch: int
    snapshot: dict[str, object] | None
    known: int = 0  #: messages that the shard has accepted, as far as the holder knows


class Bell(Protocol):
    """Tells a scheduler that something may have arrived."""

    @property
    def tells(self) -> bool:
        """Whether the store tells; else ``wait`` takes all of its time."""

    def wait(self, most_s: float) -> None:
        """Wait until something may have arrived."""

    def close(self) -> None: ...


class StoreIdentity(NamedTuple):
    """A store, and its place: two copies have the same ``uuid``, and never the same ``instance``."""

    uuid: str = ""
    instance: str = ""  #: of the file or the database; a restored one has another, and a file after a restart may have
    address: str = ""  #: the path of the file, or host and database: a restored store keeps it
    place: str = ""  #: the address with this host, for people


#: Setting that must be on → what it means where it is off, and the remedy.
_RISKS = {
    "fsync": (
        "fsync is off: a crash of the server's system or a loss of power may destroy the whole database, whatever "
        "wheel_durability is",
        "Set fsync = on in postgresql.conf, and reload it; the store cannot make up for it.",
    ),
    "full_page_writes": (
        "full_page_writes is off: a page that a loss of power has torn stays torn, and tables or indexes are damaged",
        "Set full_page_writes = on in postgresql.conf, and reload it, unless the file system writes a page whole or "
        "not at all (ZFS).",
    ),
}


class OpenTransaction(NamedTuple):
    """The oldest transaction for which the server keeps replaced and deleted rows."""

    age_ms: int
    session: str  #: its process, user, program and state, for people
    pid: int | None  #: None where the transaction is prepared, and no process has it


class ServerState(NamedTuple):
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str  #: for this user, where a session sets nothing
    standbys: int  #: connected ones
    synchronous_standby_names: str  #: empty: no commit waits for a standby
    oldest: OpenTransaction | None
    unseen: int  #: sessions of other users, whose transactions this user may not see
    dead_rows: int  #: replaced and deleted rows of the wheel's tables that are not yet removed
    is_superuser: bool

    @property
    def risks(self) -> list[tuple[str, str, str]]:
        """The settings by which durable commits may be lost: each with a sentence, and the remedy."""
        return [(name, *_RISKS[name]) for name in _RISKS if not getattr(self, name)]

    @property
    def waits_for_standby(self) -> bool:
        """Whether a durable commit is on another machine too before it is acknowledged."""
        return bool(self.synchronous_standby_names) and self.synchronous_commit != "local"


@dataclass(slots=True, frozen=True)
class BulkLoad:
    """The state of a load. ``rows`` counts its messages, once it is committed."""

    id: int
    name: str
    state: str
    run: int
    created_ms: int
    begun_ms: int
    ended_ms: int | None
    rows: int

    @property
    def is_loaded(self) -> bool:
        return self.state in (COMMITTED, DONE)


@dataclass(slots=True, frozen=True)
class PartClaim:
    """The right to write a part of a load, until another attempt claims the part."""

    load: int
    run: int
    part: int
    attempt: str


class PartChunk(NamedTuple):
    """The messages of one shard in slice ``number`` of a part's rows, packed."""

    number: int
    shard: int
    rows: int
    digest: str
    payload: bytes


class WrittenSlice(NamedTuple):
    """A slice that an earlier attempt wrote."""

    digest: str
    rows: int


class PartResult(NamedTuple):
    """The rows that a part's last attempt reports to have written."""

    attempt: str
    rows: int


class BulkLoadSummary(NamedTuple):
    """A load, and those of its chunks that no holder has accepted."""

    load: BulkLoad
    chunks: int
    rows: int


#: The outcome of a message that a drain took away.
MOVED = "moved"


@dataclass(slots=True, eq=False)
class HandoverSchedule:
    """A stored schedule with its changes, the first one first."""

    shard: int
    schedule: Schedule
    revisions: list[Revision]


@dataclass(frozen=True, slots=True)
class ShardEpoch:
    """A shard at the epoch that may write to it."""

    shard: int
    epoch: int
    now_ms: int


#: The remedy where history waits for the archive.
ARCHIVE = "run: celery-wheel-pipeline archive --store <wheel_store> --output <archive>"

#: The step of the epochs of a store that was moved on purpose: no count of takeovers reaches it, so a broker knows the
#: store from a copy that was forgotten, and the old one is fenced.
EPOCH_LEAP = 10**9

#: The shard of a task: (key or None, task id, number of shards) → shard.
ShardOf = Callable[[str | None, str, int], int]


@dataclass(slots=True)
class Resharded:
    before: int
    after: int
    moved: int = 0  #: pending tasks that changed their shard
    doubled: int = 0  #: pending tasks that were removed, since their new shard has the same message
    forgotten: int = 0  #: rows of history of the removed shards
    added: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)


#: Called with the step of a move, the number of rows that are copied, and their total.
Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class MovedStore:
    place: str  #: of the new store, for people
    resumed: bool = False  #: an earlier move had copied everything
    rows: dict[str, int] = field(default_factory=dict)  #: copied rows by table


@dataclass(frozen=True, slots=True)
class Unarchived:
    """``at_ms``: the instant of a shard's oldest event that is not archived; ``mark``: the number archived."""

    shard: int
    mark: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Archivable:
    """A shard's numbers, and its events that are not archived.

    ``first_ms``: the instant of the first event after ``forgotten``; ``days``: events by day, counted from the epoch.
    """

    shard: int
    seq: int
    forgotten: int
    archived: int
    first_ms: int | None
    days: dict[int, int]
