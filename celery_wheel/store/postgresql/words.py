"""What PostgreSQL's errors mean for the store, in words: state, consequence, remedy.

The codes are SQLSTATEs (postgresql.org/docs/current/errcodes-appendix.html); two characters are a class. An error
without one came from the connection. The server's own sentence is quoted, but not its details, which show values.
"""

from __future__ import annotations

from typing import Any

import psycopg
from sqlalchemy.exc import DBAPIError, TimeoutError

_UNKNOWN = "what was under way may be in it or not"
_NOTHING = "nothing was written"
_ANEW = "the shard is adopted anew, and it is tried again"

#: Of prepared statements that are not there, or are there already.
_BY_TRANSACTION = (
    "does not keep this process's sessions apart from others'",
    "what was under way was not written",
    "let wheel_store name the server itself, or a pooler that lends whole sessions (pgbouncer: pool_mode=session)",
)

#: SQLSTATE or class → (state, consequence, remedy); the first that the error's code begins with.
_MEANINGS = {
    "53100": (
        "has no room on its disk",
        "nothing was written, and nothing new is accepted",
        "free space on the server's disk",
    ),
    "53300": (
        "takes no more connections",
        "nothing was read or written",
        "raise max_connections on the server, or let fewer processes connect",
    ),
    "53": ("is short of resources", _NOTHING, "look into the server's log"),
    "25P03": (
        "ended a session that had stopped in the middle of a transaction",
        _NOTHING,
        "look what stopped this process for so long: a suspended machine, swapping, a debugger",
    ),
    "25006": (
        "may only be read: it is a standby or has default_transaction_read_only",
        _NOTHING,
        "let wheel_store name the primary, or all hosts with ?target_session_attrs=read-write; or reset the setting",
    ),
    "57P01": ("ended the session: it is shut down, or another scheduler took the shard", _UNKNOWN, _ANEW),
    "57P": ("is starting, stopping or recovering", _UNKNOWN, _ANEW),
    "57014": ("stopped a statement that took too long", _NOTHING, "look into the server's load and pg_stat_activity"),
    "55P03": (
        "has the row locked by another transaction",
        _NOTHING,
        "look for it in pg_stat_activity and pg_locks; " + _ANEW,
    ),
    "40": ("undid the transaction in favour of another", _NOTHING, _ANEW),
    "28": (
        "does not let this user in",
        "nothing was read or written",
        "check user and password in wheel_store, and pg_hba.conf on the server",
    ),
    "3D000": ("is not there", "nothing was read or written", "make it: createdb, or set wheel_store to another"),
    "3F000": (
        "has no schema for the tables",
        "nothing was read or written",
        "make the schema that search_path names",
    ),
    "42501": (
        "does not permit this to the user",
        _NOTHING,
        "let the tables belong to the user in wheel_store, or grant it CREATE on the schema and all on its tables",
    ),
    "42P01": ("is not whole", "nothing was read or written", "its tables were made by another version, or by hand"),
    "42703": ("is not whole", "nothing was read or written", "its tables were made by another version, or by hand"),
    "23": (
        "has one of these messages or ids already",
        _NOTHING,
        "the shard is adopted anew, which takes stock of what is there; if this repeats, please report it",
    ),
    "26000": _BY_TRANSACTION,
    "42P05": _BY_TRANSACTION,
    "22": ("cannot keep a value", _NOTHING, "this is a defect, please report it"),
    "54": ("cannot keep a value of that size", _NOTHING, "this is a defect, please report it"),
    "F0": ("cannot be asked like this", "nothing was read or written", "correct the URL in wheel_store"),
    "58": ("could not be read or written", _UNKNOWN, "look into the server's log for errors of its disk"),
    "XX": ("is damaged or met a defect of its own", _UNKNOWN, "look into the server's log"),
}

#: libpq gives no code for what a server said before it let anybody in: a part of the sentence → the code it would have.
_SAID_AT_THE_DOOR = {
    "authentication failed": "28P01",
    "no pg_hba.conf entry": "28000",
    "does not exist": "3D000",
    "too many clients": "53300",
    "connection slots": "53300",
    "is starting up": "57P03",
    "is shutting down": "57P03",
    "in recovery mode": "57P03",
}


def in_words(name: str, error: Exception) -> str:
    """``error``: SQLAlchemy's, or the driver's own."""
    if isinstance(error, TimeoutError):
        return (
            f"the store {name} has all its connections of this process in use; nothing was read or written; "
            "it is tried again; look for long transactions in pg_stat_activity"
        )
    cause: Any = error.orig if isinstance(error, DBAPIError) else error
    diag = getattr(cause, "diag", None)
    detail = " ".join(((diag and diag.message_primary) or str(cause)).split())
    code = sqlstate(error) or _code_of(cause, detail)
    for prefix, (state, consequence, remedy) in _MEANINGS.items():
        if code.startswith(prefix):
            return f"the store {name} {state} ({detail}); {consequence}; {remedy}"
    if code and not code.startswith("08"):
        return f"the store {name} did not do as it was asked ({detail}); {_UNKNOWN}; the shard is adopted anew"
    return (
        f"the store {name} cannot be reached ({detail}); {_UNKNOWN}; check that the server runs and that this host "
        "reaches it; it is tried again"
    )


def sqlstate(error: BaseException) -> str:
    """Empty where the server said none."""
    cause: Any = error.orig if isinstance(error, DBAPIError) else error
    return getattr(cause, "sqlstate", None) or ""


def _code_of(cause: Any, detail: str) -> str:
    if isinstance(cause, psycopg.DataError):  # the driver's own, before anything was sent
        return "22000"
    if isinstance(cause, psycopg.ProgrammingError):
        return "F0000"
    if "FATAL" not in detail:
        return ""
    return next((code for part, code in _SAID_AT_THE_DOOR.items() if part in detail), "")
