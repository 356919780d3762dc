"""What PostgreSQL's errors mean for the store, in words: state, consequence, remedy.

The codes are SQLSTATEs (postgresql.org/docs/current/errcodes-appendix.html); a class is their first two characters.
"""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

_UNKNOWN = "what was under way may be in it or not"

#: Code or class → (state, consequence, remedy); the first that the error's code begins with.
_MEANINGS = {
    "28": ("refuses this user", "nothing was read or written", "check user and password in wheel_store"),
    "3D000": ("is not there", "nothing was read or written", "make the database: createdb"),
    "42501": ("does not allow this", "nothing was written", "grant the user the tables wheel_*, or their schema"),
    "42P01": ("has no tables of a store", "nothing was read or written", "start a scheduler, which makes them"),
    "42703": (
        "has tables of another version",
        "nothing was read or written",
        "run the same celery-wheel everywhere",
    ),
    "53100": ("has no room on its disk", "nothing was written, and nothing new is accepted", "free space there"),
    "53300": ("has no connection left", "nothing was read or written", "raise max_connections, or use a pooler"),
    "55P03": (
        "is locked by another transaction",
        "nothing was written",
        "look into pg_stat_activity for a transaction that is open for long; it is tried again",
    ),
    "25P03": (
        "ended a transaction that stood still for half a lease",
        "nothing of it was written",
        "was this process or its machine suspended? the shard is adopted anew",
    ),
    "23": (
        "has one of these messages or ids already",
        "nothing was written",
        "the shard is adopted anew, which takes stock of what is there; if this repeats, please report it",
    ),
    "40": ("gave up a transaction in favour of another", "nothing was written", "the shard is adopted anew"),
    "57P": ("is being stopped or started, or ended this session", _UNKNOWN, "it is tried again"),
    "08": ("cannot be reached", _UNKNOWN, "start it, or check host and port in wheel_store; it is tried again"),
}


_WHILE_CONNECTING = {"does not exist": "3D000", "authentication failed": "28", "too many clients": "53300"}


def in_words(name: str, error: SQLAlchemyError) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else None
    detail = " ".join(str(cause or error).split())
    state = getattr(cause, "sqlstate", None)
    if state is None and isinstance(error, DBAPIError) and type(cause).__name__ == "OperationalError":
        # The driver gives no code for what the server says to a connection that is being made.
        state = next((code for words, code in _WHILE_CONNECTING.items() if words in detail), "08")
    if state is not None and state.startswith("22"):
        return (
            f"a value does not fit into the store {name} ({detail}); nothing of its change was written; "
            "this is a defect, please report it"
        )
    for prefix, (what, consequence, remedy) in _MEANINGS.items():
        if state is not None and state.startswith(prefix):
            return f"the store {name} {what} ({detail}); {consequence}; {remedy}"
    return f"the store {name} did not do as it was asked ({detail}); {_UNKNOWN}; the shard is adopted anew"
