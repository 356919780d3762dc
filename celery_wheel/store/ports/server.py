"""The value of ``Browse.server``: what the server of a store promises, and what it costs just now.

A store in a file has no server. ``doctor`` prints all of it, a scheduler logs the risks when it starts, and metrics
show the age of the oldest transaction.
"""

from __future__ import annotations

from typing import NamedTuple

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

    @property
    def risks(self) -> list[tuple[str, str, str]]:
        """The settings by which durable commits may be lost: each with a sentence, and the remedy."""
        return [(name, *_RISKS[name]) for name in _RISKS if not getattr(self, name)]

    @property
    def waits_for_standby(self) -> bool:
        """Whether a durable commit is on another machine too before it is acknowledged."""
        return bool(self.synchronous_standby_names) and self.synchronous_commit != "local"
