"""SQLite's errors for people: state, consequence, remedy.

The names are SQLite's own (sqlite.org/rescode.html); the name of an extended code begins with that of its primary code.
"""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError

from celery_wheel.store.sql.database import ADOPTED_ANEW, DOUBLED, OTHER_TABLES, REFUSES_ALL, phrase

_UNKNOWN = "the last change may be committed or not"

#: Name of the error → (state, consequence, remedy); the first entry counts that the error's name begins with.
_MEANINGS = {
    "SQLITE_BUSY": (
        "is locked by another process",
        "nothing was written, and it is tried again",
        "find the process with an open transaction (lsof on the file shows the processes)",
    ),
    "SQLITE_PROTOCOL": (  # the begin of a transaction, tried for seconds while others begin theirs
        "is opened by several processes at this moment",
        "nothing was read or written, and it is tried again",
        "if this repeats, the host is overloaded, or the file is on a network's disk",
    ),
    "SQLITE_FULL": (
        "has no room to grow",
        "nothing was written, and nothing new is accepted",
        "free space on that disk, or raise the user's quota",
    ),
    "SQLITE_READONLY": (
        "may not be written to",
        "nothing was written",
        "let the user who runs this process write to the file, to those beside it (-wal, -shm) and to the folder",
    ),
    "SQLITE_CANTOPEN": (
        "cannot be opened",
        "nothing was read or written",
        "check that the folder exists and that this user may write to it, and the limit of open files (ulimit -n)",
    ),
    "SQLITE_NOTADB": (
        "is no SQLite database",
        "nothing was read or written",
        "give the store a file of its own in wheel_store",
    ),
    "SQLITE_CORRUPT": (
        "is damaged",
        _UNKNOWN,
        "stop the schedulers, keep a copy of the file and of those beside it, then try `sqlite3 <file> .recover`",
    ),
    "SQLITE_IOERR": ("could not be read or written", _UNKNOWN, "check the system's log for errors of that disk"),
    "SQLITE_CONSTRAINT_TRIGGER": REFUSES_ALL,
    "SQLITE_CONSTRAINT": DOUBLED,
}

#: An error of the system, at a look at the file before SQLite uses it.
_OF_THE_SYSTEM = (
    "could not be read or written",
    "nothing was read or written",
    "let the user who runs this process use the file and its folder; check the system's log for errors of that disk",
)


def error_name(error: Exception) -> str:
    """Return SQLite's name of the error; empty where the error is not SQLite's."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return getattr(cause, "sqlite_errorname", None) or ""


def may_pass(error: Exception) -> bool:
    """Whether the error ends by itself, when another process commits or has opened the file."""
    return error_name(error).startswith(("SQLITE_BUSY", "SQLITE_PROTOCOL"))


def describe(name: str, error: Exception, *, reading: bool = False) -> str:
    """Return the message for an error of a statement that reads, or that writes."""
    detail = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    state, consequence, remedy = _OF_THE_SYSTEM if isinstance(error, OSError) else _meaning(error_name(error), detail)
    return phrase(name, f"{state} ({detail})", consequence, remedy, reading=reading)


def _meaning(name: str, detail: str) -> tuple[str, str, str]:
    for prefix, meaning in _MEANINGS.items():
        if name.startswith(prefix):
            return meaning
    if "no such table" in detail or "no such column" in detail:
        return OTHER_TABLES
    return "failed", _UNKNOWN, f"{ADOPTED_ANEW}; report it if it repeats"
