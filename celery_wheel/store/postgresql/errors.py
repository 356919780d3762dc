"""PostgreSQL's errors for people: state, consequence, remedy.

The codes are SQLSTATEs (postgresql.org/docs/current/errcodes-appendix.html); two characters are a class. An error
without a code came from the connection. A message quotes the server's own sentence, without its details: they contain
values. A change is in doubt only where its COMMIT was sent: a server rolls back every other transaction.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import psycopg
from sqlalchemy.exc import DBAPIError, TimeoutError

from celery_wheel.store.sql.database import ADOPTED_ANEW, DOUBLED, OTHER_TABLES, REFUSES_ALL, phrase
from celery_wheel.store.sql.upkeep import SQLSTATE


class Sent(Enum):
    """How much the server had been sent at the error, as the consequence of an error that does not tell it itself."""

    NOTHING = "nothing was sent to it"
    STATEMENTS = "nothing was written"
    COMMIT = "the last change may be committed or not"


_UNKNOWN = Sent.COMMIT.value
_NOTHING = Sent.STATEMENTS.value
_ANEW = f"{ADOPTED_ANEW}, and the change is tried again"

#: Prepared statements are missing, or exist already.
_BY_TRANSACTION = (
    "gives this process's sessions to other processes",
    "the change was not written",
    "let wheel_store name the server itself, or a pooler that lends whole sessions (pgbouncer: pool_mode=session)",
)

#: SQLSTATE or class → (state, consequence, remedy); the first entry counts that the error's code begins with.
_MEANINGS = {
    SQLSTATE: REFUSES_ALL,
    "53100": (
        "has no room on its disk",
        "nothing was written, and nothing new is accepted",
        "free space on the server's disk",
    ),
    "53300 limit": (
        "has as many connections as its role or its database may have",
        "nothing was read or written",
        "raise the limit: ALTER ROLE … CONNECTION LIMIT, or ALTER DATABASE … CONNECTION LIMIT; or let fewer processes "
        "connect as this user",
    ),
    "53300": (
        "takes no more connections",
        "nothing was read or written",
        "raise max_connections on the server, or let fewer processes connect",
    ),
    "53": ("is short of resources", _NOTHING, "read the server's log"),
    "25P03": (
        "ended a session that had stopped in the middle of a transaction",
        _NOTHING,
        "find out why this process stopped for so long: a suspended machine, swapping, a debugger",
    ),
    "25006": (
        "is read-only: it is a standby or has default_transaction_read_only",
        _NOTHING,
        "let wheel_store name the primary, or all hosts with ?target_session_attrs=read-write; or reset the setting",
    ),
    "08004": ("refuses the connection", f"{_UNKNOWN}, and it is tried again", "read the server's log"),
    "57P01": ("ended the session: it shuts down, or another scheduler took the shard", _UNKNOWN, _ANEW),
    "57P": ("is starting, stopping or recovering", _UNKNOWN, _ANEW),
    "57014": ("stopped a statement that took too long", _NOTHING, "check the server's load and pg_stat_activity"),
    "55P03": (
        "waited too long for a lock that another transaction has",
        _NOTHING,
        "find it in pg_stat_activity and pg_locks; " + _ANEW,
    ),
    "40": ("rolled back the transaction in favour of another", _NOTHING, _ANEW),
    "28": (
        "does not let this user in",
        "nothing was read or written",
        "check user and password in wheel_store, and pg_hba.conf on the server",
    ),
    "3D000": (
        "does not exist",
        "nothing was read or written",
        "make it: createdb, or set wheel_store to another database",
    ),
    "3F000": ("has no schema for the tables", "nothing was read or written", "make the schema named in search_path"),
    "42501": (
        "does not permit this user to do it",
        _NOTHING,
        'let a scheduler\'s user own the tables, and grant other users the rights of the page "Users with few rights"',
    ),
    "42P01": OTHER_TABLES,
    "42703": OTHER_TABLES,
    "23": DOUBLED,
    "26000": _BY_TRANSACTION,
    "42P05": _BY_TRANSACTION,
    "22": ("cannot keep a value", _NOTHING, "this is a defect, please report it"),
    "54": ("cannot keep a value of that size", _NOTHING, "this is a defect, please report it"),
    "F0": (
        "does not accept its connection parameters",
        "nothing was read or written",
        "correct the URL in wheel_store",
    ),
    "58": ("could not be read or written", _UNKNOWN, "check the server's log for errors of its disk"),
    "XX": ("is damaged or has a defect", _UNKNOWN, "read the server's log"),
}

#: libpq gives no code for an error before the login: a part of its sentence → the code it would have, the first that
#: fits. The part after a blank is our own, for a remedy of its own.
_LOGIN_ERRORS = {
    "authentication failed": "28P01",
    "no password supplied": "28P01",
    "no pg_hba.conf entry": "28000",
    'FATAL: role "': "28000",
    "permission denied for database": "28000",
    "does not support SSL": "F0000",
    "does not exist": "3D000",
    "too many connections for": "53300 limit",
    "too many clients": "53300",
    "connection slots": "53300",
    "no more connections allowed": "53300",
    "is starting up": "57P03",
    "is shutting down": "57P03",
    "in recovery mode": "57P03",
    "not yet accepting connections": "57P03",
    "FATAL": "08004",
}


def describe(name: str, error: Exception, *, reading: bool = False, sent: Sent = Sent.COMMIT) -> str:
    """Return the message for an error of SQLAlchemy or of the driver, of a statement that reads, or that writes."""
    if isinstance(error, TimeoutError):
        state = "has all connections of this process in use"
        meaning = _NOTHING, f"{_ANEW}; find long transactions in pg_stat_activity"
        return phrase(name, state, *meaning, reading=reading)
    code, detail = _read(error)
    state, consequence, remedy = _meaning(code)
    if sent is Sent.NOTHING and not consequence.startswith(_UNKNOWN):
        consequence = sent.value
    consequence = consequence.replace(_UNKNOWN, sent.value)
    return phrase(name, f"{state} ({detail})", consequence, remedy, reading=reading)


def may_pass(error: Exception) -> bool:
    """Whether the error ends by itself: the server starts, is full or away, a row is locked, this host stalls."""
    code, _ = _read(error)
    return not code or code.startswith(("08", "25P03", "40", "53300", "55P03", "57P"))


def _read(error: Exception) -> tuple[str, str]:
    """Return the error's code, empty for one of the connection, and the server's sentence."""
    cause: Any = error.orig if isinstance(error, DBAPIError) else error
    diag = getattr(cause, "diag", None)
    detail = " ".join(((diag and diag.message_primary) or str(cause)).split())
    return sqlstate(error) or _code_of(cause, detail), detail


def _meaning(code: str) -> tuple[str, str, str]:
    for prefix, meaning in _MEANINGS.items():
        if code.startswith(prefix):
            return meaning
    if code and not code.startswith("08"):
        return "failed", _UNKNOWN, f"{ADOPTED_ANEW}; report it if it repeats"
    return (
        "cannot be reached",
        f"{_UNKNOWN}, and it is tried again",
        "check that the server runs and that this host reaches it",
    )


def sqlstate(error: BaseException) -> str:
    """Return the error's SQLSTATE; empty where it has none."""
    cause: Any = error.orig if isinstance(error, DBAPIError) else error
    return getattr(cause, "sqlstate", None) or ""


def _code_of(cause: Any, detail: str) -> str:
    if isinstance(cause, psycopg.DataError):  # of the driver, before it sent anything
        return "22000"
    if isinstance(cause, psycopg.ProgrammingError):
        return "F0000"
    return next((code for part, code in _LOGIN_ERRORS.items() if part in detail), "")
