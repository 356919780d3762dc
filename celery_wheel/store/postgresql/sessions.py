"""A session of a PostgreSQL store: how it connects, and what is set in it before anybody uses it.

::

    connect ─► database keeps text as UTF-8? ─► set_config, one call for all ─► into the pool

Settings are set by a statement, not as ``options`` of the connection: a pooler that lends whole sessions (pgbouncer's
``pool_mode=session``) refuses those, or drops them without a word. They come after whatever the database, the role or
``?options=`` in the URL say, and one that a version of the server does not know is left out.

Durable is durable: where the database or the role have synchronous_commit=off, a session has it on, and what may be
lost says so in its own transaction. Any other value (local, remote_apply, …) is the operator's choice and stays.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL

from celery_wheel.errors import StoreUnusable

#: A statement that takes longer than this is a mistake, of ours or of the server's.
STATEMENT_TIMEOUT_MS = 60_000

_SET = """
    SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS wanted (name, value)
    WHERE current_setting(name, true) IS NOT NULL
      AND (name <> 'synchronous_commit' OR current_setting(name) = 'off')
"""


def patience_ms(lease_ms: int) -> int:
    """How long a session may hang: whoever stopped has to be out of the way before the lease is over."""
    return max(100, lease_ms // 2)


def connect_args(url: URL, lease_ms: int) -> dict[str, Any]:
    """Of the driver, beside what is in the URL."""
    arguments = {
        "autocommit": True,  # transactions are begun and ended in ``writing``, by name
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
    if not isinstance(options, str):  # given more than once
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
        # Who has waited for the shard's row as long as this cannot have renewed: it is no longer the holder.
        "lock_timeout": str(lease_ms),
        "statement_timeout": str(STATEMENT_TIMEOUT_MS),
        # Sessions wait in the pool for as long as nothing is due, and opening a large store is one transaction.
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
    """``connection``: the driver's own, just connected; ``name``: the store's, for people."""
    try:
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise StoreUnusable(
                f"the store {name} keeps text as {encoding}, so one task name could stop all others; nothing was "
                "written; make a database that keeps it as UTF8: createdb --encoding=UTF8 --template=template0"
            )
        wanted = settings(lease_ms)
        connection.execute(_SET, (list(wanted), list(wanted.values())))
    except BaseException:
        connection.close()
        raise
