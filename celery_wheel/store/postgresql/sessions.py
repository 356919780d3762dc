"""A session of a PostgreSQL store: its connection parameters, and the settings made before its first use.

::

    connect ─► does the database keep text as UTF-8? ─► set_config, one call for all ─► into the pool

A statement makes the settings, not ``options`` of the connection: a pooler that lends whole sessions (pgbouncer's
``pool_mode=session``) refuses those, or drops them silently. The settings override those of the database, of the role
and of ``?options=`` in the URL; a setting that the server's version does not know is left out.

Where the server, the database or the role has synchronous_commit=off, the session has it on, and a transaction that may
be lost turns it off for itself. Any other value (local, remote_apply, …) is the operator's choice. The session sets it
too: a setting of the session outranks a later reload of the server's configuration, which reaches open sessions even in
the middle of a transaction. It costs nothing; a statement in each transaction took 20 to 50 µs.
"""

from __future__ import annotations

import traceback
from typing import Any

import psycopg
from sqlalchemy import URL

from celery_wheel.errors import StoreUnusable

#: A statement that takes longer is a defect of celery-wheel or of the server.
STATEMENT_TIMEOUT_MS = 60_000

_SET = """
    SELECT set_config(name, CASE WHEN name = 'synchronous_commit' AND is_ <> 'off' THEN is_ ELSE value END, false)
    FROM unnest(%s::text[], %s::text[]) AS wanted (name, value), current_setting(name, true) AS is_
    WHERE is_ IS NOT NULL
"""


def patience_ms(lease_ms: int) -> int:
    """Return how long a session may hang: the session of a stopped holder must end before the lease expires."""
    return max(100, lease_ms // 2)


def connect(dialect: Any, _record: Any, args: Any, arguments: Any) -> Any:
    """Return a new connection of the driver. A server that is stopped accepts connections and never answers.

    The socket of such an attempt is closed at once: the frames of psycopg's error refer to it in a cycle, and the
    garbage collector of an idle scheduler may not run for an hour, in which it would reach the limit of open files.
    """
    try:
        return dialect.connect(*args, **arguments)
    except psycopg.Error as error:
        traceback.clear_frames(error.__traceback__)
        raise


def connect_args(url: URL, lease_ms: int) -> dict[str, Any]:
    """Return the driver's arguments, beside those in the URL."""
    arguments = {
        "autocommit": True,  # ``writing`` begins and ends transactions by statements
        "client_encoding": "utf8",
        "connect_timeout": max(2, lease_ms // 1000),
        "tcp_user_timeout": patience_ms(lease_ms),
        "keepalives_idle": 1,
        "keepalives_interval": 1,
        "keepalives_count": 2,
    }
    if "application_name" not in url.query:
        arguments["application_name"] = "celery-wheel"
    options = url.query.get("options", "")
    if not isinstance(options, str):  # the URL has several
        arguments["options"] = " ".join(options)
    return arguments


def settings(lease_ms: int) -> dict[str, str]:
    return {
        "synchronous_commit": "on",
        "idle_in_transaction_session_timeout": str(patience_ms(lease_ms)),
        "tcp_user_timeout": str(patience_ms(lease_ms)),
        "tcp_keepalives_idle": "1",
        "tcp_keepalives_interval": "1",
        "tcp_keepalives_count": "2",
        # A holder that waited so long for the shard's row has not renewed its lease: it is no longer the holder.
        "lock_timeout": str(lease_ms),
        "statement_timeout": str(STATEMENT_TIMEOUT_MS),
        # Sessions idle in the pool while nothing is due, and opening a large store is one long transaction.
        "idle_session_timeout": "0",
        "transaction_timeout": "0",
        "default_transaction_isolation": "read committed",
        "plan_cache_mode": "force_custom_plan",
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "jit": "off",
    }


def prepare(connection: Any, name: str, lease_ms: int) -> None:
    """Check the server and make the settings. ``connection`` is the driver's own, ``name`` the store's for people."""
    try:
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise StoreUnusable(
                f"the store {name} keeps text as {encoding}, so one task name could stop all tasks; nothing was "
                "written; make a database with UTF8: createdb --encoding=UTF8 --template=template0"
            )
        wanted = settings(lease_ms)
        connection.execute(_SET, (list(wanted), list(wanted.values())))
    except BaseException:
        connection.close()
        raise
