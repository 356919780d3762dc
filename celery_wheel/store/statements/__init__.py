"""Every prepared statement of the store, by name, for one dialect.

::

    holding      lease, epoch, fence, schedulers
    writing      the parts of a change; the inbox
    forgetting   history
    lookups      ranges of positions, rows by what they are called
    commanding   requests and answers, tombstones, watches, gates
    loading      bulk loads
    archiving    what may be forgotten once it is archived

What only one dialect has is in its room: ``sqlite.database``, ``postgresql.statements``. ``browse``, ``handover``,
``loads``, ``maintenance`` and ``resharding`` build theirs where they run: nobody calls them a thousand times a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, Dialect, Table

from celery_wheel.store.fields import Adding
from celery_wheel.store.prepared import Prepared
from celery_wheel.store.statements.commanding import Commanding
from celery_wheel.store.statements.forgetting import Forgetting
from celery_wheel.store.statements.holding import Holding
from celery_wheel.store.statements.loading import Loading
from celery_wheel.store.statements.lookups import Lookups
from celery_wheel.store.statements.parts import ROW
from celery_wheel.store.statements.writing import Writing


class Statements(Holding, Writing, Forgetting, Lookups):
    """``insert_or`` is the dialect's own ``insert``, the one that has ``on_conflict_do_update``.

    Args:
        clock: the database's own clock in Unix milliseconds, where the lease is in the shard's row and runs out by it.
        began: the same clock when the transaction began.
        adding: how many rows get into a table faster than by the prepared insert.
    """

    def __init__(
        self,
        dialect: Dialect,
        insert_or: Callable[[Table], Any],
        *,
        clock: ColumnElement[int] | None = None,
        began: ColumnElement[int] | None = None,
        adding: Callable[[Table, Prepared], Adding] | None = None,
    ) -> None:
        self._dialect = dialect
        self._insert_or = insert_or
        self._clock = clock
        self._began = began
        self._adding = adding
        self._holding()
        self._writing()
        self.commanding = Commanding(self._prepare, insert_or)
        self.loading = Loading(self._prepare, self._bulk, insert_or)
        self.commanding.watches(ROW, self._claims_on)
        self.commanding.recalling(ROW)
        self._forgetting()
        self._ranges()
        self._lookups()
