"""The prepared statements of the store, by name, for one dialect: those that a holder or a client runs again and again.

::

    lease        lease, epoch, fence, schedulers
    write        the parts of a change; the inbox
    forget       history
    lookups      ranges of positions, rows by their ids and task ids
    control      commands and answers, tombstones, watches, gates
    bulk_load    bulk loads
    schedules    recurring schedules, their runs and skips
    archive      what may be forgotten once it is archived
    clauses      the parts that several of these share

A dialect's own statements are in its room: ``sqlite.database``, ``postgresql.statements``. Queries that run rarely are
in ``celery_wheel.store.sql.queries``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, Dialect, Table

from celery_wheel.store.sql.fields import InsertStatement
from celery_wheel.store.sql.statement import Prepared
from celery_wheel.store.sql.statements.bulk_load import BulkLoadStatements
from celery_wheel.store.sql.statements.control import ControlStatements
from celery_wheel.store.sql.statements.forget import ForgetStatements
from celery_wheel.store.sql.statements.lease import LeaseStatements
from celery_wheel.store.sql.statements.lookups import LookupStatements
from celery_wheel.store.sql.statements.schedules import ScheduleStatements
from celery_wheel.store.sql.statements.write import WriteStatements


class Statements(LeaseStatements, WriteStatements, ForgetStatements, LookupStatements):
    """``insert_or`` is the dialect's own ``insert``, with ``on_conflict_do_update``.

    Args:
        clock: the database's own clock in Unix milliseconds, where the lease is in the shard's row and expires by it.
        began: the same clock at the begin of the transaction.
        adding: makes a faster way to insert many rows out of the prepared insert.
    """

    def __init__(
        self,
        dialect: Dialect,
        insert_or: Callable[[Table], Any],
        *,
        clock: ColumnElement[int] | None = None,
        began: ColumnElement[int] | None = None,
        adding: Callable[[Table, Prepared], InsertStatement] | None = None,
    ) -> None:
        self._dialect = dialect
        self._insert_or = insert_or
        self._clock = clock
        self._began = began
        self._adding = adding
        self._prepare_lease()
        self._prepare_write()
        self.control = ControlStatements(self._prepare, insert_or, self._claims_on)
        self.bulk_load = BulkLoadStatements(self._prepare, self._bulk, insert_or)
        self.schedules = ScheduleStatements(self._prepare, self._bulk, insert_or)
        self.prepare = self._prepare
        self._prepare_forget()
        self._prepare_ranges()
        self._prepare_lookups()
