"""Statements: compiled once for a dialect, run with plain tuples, and bound to values by their names.

::

    Statements(dialect, …)  ── of(LeaseStatements) ──►  the statements of a feature, made once in a process
         └ (clause) ──► Prepared(connection, shard=0)   10 µs a row inserted, where Core's ``execute`` takes 20;
                                                        50 µs a call that returns a row, where it takes 140

Queries that run rarely are not prepared: SQLAlchemy compiles each shape at its first use and keeps it. A range is
always (after, upto] in one lane of one shard: as a comparison of pairs, a range of the position index on both dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Protocol, TypeVar

from sqlalchemy import ColumnElement, Connection, Table, and_, bindparam, insert, literal_column, select, tuple_
from sqlalchemy.engine import CursorResult
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import SQLCompiler

from celery_wheel.store.model import Position, Row
from celery_wheel.store.sql.schema import shard, snapshot, timer, watch
from celery_wheel.values import parts

#: Values of one ``IN``. A statement has a fixed number of places, so that it is compiled once; spare places repeat the
#: last value. SQLite before 3.32 allows 999.
IN_PLACES = 500

#: Keys, names, routes or ids of one statement; most calls have one or a few.
KEY_PLACES = 50

_Part = TypeVar("_Part")


class InsertStatement(Protocol):
    """A statement that inserts rows: tuples in the order of ``names``."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def many(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> int | None: ...


class Prepared:
    """A call binds values by name; ``at`` and ``many`` bind them in the order of ``names``."""

    __slots__ = ("_constants", "_places", "names", "sql")

    def __init__(self, clause: ClauseElement, dialect: Any) -> None:
        compiled = clause.compile(dialect=dialect)
        assert isinstance(compiled, SQLCompiler)  # noqa: S101 - for the type checker
        self.sql = compiled.string
        #: Names of the bound values, in the order of their places in the SQL; a name may come twice.
        self.names: tuple[str, ...] = tuple(compiled.positiontup or ())
        self._constants = {name: value for name, value in compiled.params.items() if value is not None}
        self._places: dict[str, list[str]] = {}  #: word → the names of its ``numbered`` places

    def __call__(self, connection: Connection, **values: Any) -> CursorResult[*tuple[Any, ...]]:
        return connection.exec_driver_sql(self.sql, self.places(values))

    def places(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return named values in the order of their places."""
        constants = self._constants
        return tuple([values[name] if name in values else constants[name] for name in self.names])

    def at(self, connection: Connection, places: tuple[Any, ...]) -> CursorResult[*tuple[Any, ...]]:
        return connection.exec_driver_sql(self.sql, places)

    def each(self, connection: Connection, word: str, wanted: Sequence[Any], **values: Any) -> list[Any]:
        """Return the rows for all values that are wanted in the places ``numbered(word)``, as many at a time as fit."""
        names = self._places.get(word) or [name for name in self.names if name.rpartition("_")[0] == word]
        self._places[word] = names
        filled = ([*part, *[part[-1]] * (len(names) - len(part))] for part in parts(wanted, len(names)))
        named = [dict(zip(names, part, strict=True)) for part in filled]
        return [row for part in named for row in self(connection, **part, **values)]

    def many(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> int:
        """Run once for each row; does nothing without rows. Returns the number of affected rows."""
        return connection.exec_driver_sql(self.sql, list(rows)).rowcount if rows else 0

    def many_named(self, connection: Connection, rows: Iterable[Mapping[str, Any]]) -> int:
        """Do as ``many`` does, with values by name."""
        return self.many(connection, in_order(self, rows))


class OfArrays(Prepared):
    """A statement with an array in each place: ``many`` runs it once for all rows."""

    __slots__ = ()

    def many(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> int:
        return self.at(connection, tuple(map(list, zip(*rows, strict=True)))).rowcount if rows else 0


def rows_by_id(columns: Sequence[Any], range_: ColumnElement[bool]) -> Any:
    """Select the rows of a range in the order of their ids: that of their pages, not of their due times.

    SQLite reads twice as many a second, also of pages in memory, and four times as many from a disk.
    """
    return select(*columns).where(timer.c.id.in_(select(timer.c.id).where(range_)))


def is_of_shard(shard: Any = None) -> ColumnElement[bool]:
    """Match the rows of a shard, of the bound ``shard`` by default, beside a condition on their ids.

    SQLite would prefer the shard itself to the ids, and read all rows of the shard by an index that begins with it.
    """
    found: ColumnElement[bool] = timer.c.shard + constant(0) == (bindparam("shard") if shard is None else shard)
    return found


def known_among(columns: Sequence[Any], at_shard: Any, envelopes: list[Any]) -> Any:
    return select(*columns).where(timer.c.shard == at_shard, timer.c.envelope_id.in_(envelopes))


#: The columns of a ``Watch`` without its kind, by which it is read.
CLAIM = (watch.c.key, watch.c.timer_id, watch.c.latest_ms, watch.c.window_ms)


def claims_among(keys: list[Any]) -> Any:
    """Select the watches of the bound ``shard`` and ``kind`` on these keys."""
    here = and_(watch.c.shard == bindparam("shard"), watch.c.kind == bindparam("kind"), watch.c.key.in_(keys))
    return select(*CLAIM).where(here).subquery("claim")


class Statements:
    """Compiles for one dialect, whose differences are values.

    Args:
        clock: the database's own clock in Unix milliseconds, where the lease is in the shard's row and expires by it.
        began: the same clock at the begin of the transaction.
        adding: makes a faster way to insert many rows out of the prepared insert.
        from_arrays: selects rows out of an array for each of these columns, where one statement can take all rows so.
        rows_in, known_of, claims_on: selects that a dialect plans better in another form; see their defaults.
    """

    def __init__(
        self,
        dialect: Any,
        insert_or: Callable[[Table], Any],
        *,
        clock: ColumnElement[int] | None = None,
        began: ColumnElement[int] | None = None,
        adding: Callable[[Table, Prepared], InsertStatement] | None = None,
        from_arrays: Callable[[Table, Sequence[str]], Any] | None = None,
        rows_in: Callable[[Sequence[Any], ColumnElement[bool]], Any] = rows_by_id,
        known_of: Callable[[Sequence[Any], Any, list[Any]], Any] = known_among,
        claims_on: Callable[[list[Any]], Any] = claims_among,
    ) -> None:
        self._dialect = dialect
        self._adding, self._from_arrays = adding, from_arrays
        self._made: dict[Any, Any] = {}
        self.insert_or = insert_or
        self.clock, self.began = clock, began
        self.rows_in, self.known_of, self.claims_on = rows_in, known_of, claims_on

    def of(self, part: Callable[[Statements], _Part]) -> _Part:
        """Return the statements of a feature, which are compiled at its first use."""
        made: _Part | None = self._made.get(part)
        return self._made.setdefault(part, part(self)) if made is None else made

    def __call__(self, clause: Any) -> Prepared:
        return Prepared(clause, self._dialect)

    def bulk(self, table: Table, *names: str) -> InsertStatement:
        """Compile an insert of many rows, with values of these columns; without names, of all."""
        prepared = self(insert(table).inline().values(places(*names)) if names else insert(table))
        return prepared if self._adding is None else self._adding(table, prepared)

    def put(self, table: Table, place: Sequence[str], values: Sequence[str], **constants: Any) -> Prepared:
        """Compile: insert a row, or replace the values of the row with the same place."""
        new = self.insert_or(table).inline().values(**places(*place, *values), **constants)
        taken = {name: new.excluded[name] for name in (*values, *constants)}
        return self(new.on_conflict_do_update(index_elements=list(place), set_=taken))

    def sums(self, counts: Table, *place: str) -> Prepared:
        """Compile: insert rows with a place and a number ``pending``, or add the number to that of the same place.

        ``many`` takes each place once.
        """
        names = [one.name for one in counts.c if one.name in (*place, "pending")]
        new = self.insert_or(counts).inline()
        if self._from_arrays is None:
            new = new.values(places(*names))
        else:
            new = new.from_select(names, self._from_arrays(counts, names))
        added = {"pending": counts.c.pending + new.excluded.pending}
        clause = new.on_conflict_do_update(index_elements=place, set_=added)
        return (Prepared if self._from_arrays is None else OfArrays)(clause, self._dialect)


# -- values and columns -----------------------------------------------------------------------------------


def names_of(kind: type[Any]) -> tuple[str, ...]:
    """Return the fields of a dataclass or a NamedTuple, in their order."""
    return tuple(one.name for one in fields(kind)) if is_dataclass(kind) else kind._fields


def columns_of(
    kind: type[Any], *tables: Table, without: Sequence[str] = (), **others: ColumnElement[Any]
) -> tuple[ColumnElement[Any], ...]:
    """Return the columns for ``kind(*row)``: for each field the column of that name in the first table that has one."""

    def column(name: str) -> ColumnElement[Any]:
        return others[name] if name in others else next(one.c[name] for one in tables if name in one.c)

    return tuple([column(name) for name in names_of(kind) if name not in without])


class ObjectInsert:
    """Writes objects by a statement: the value of each name is an attribute of the object, or comes ``beside`` it.

    ``named``: paths, with dots, of attributes with other names than the statement's values.
    """

    def __init__(self, statement: InsertStatement, *beside: str, **named: str) -> None:
        self.statement = statement
        values = ", ".join(name if name in beside else f"one.{named.get(name, name)}" for name in statement.names)
        # A generated function, as in namedtuple: ``attrgetter`` takes twice the time for a timer's 21 values. All names
        # are those of columns and of fields.
        made = eval(f"lambda {', '.join(['one', *beside])}: ({values},)")  # noqa: S307
        self.row: Callable[..., tuple[Any, ...]] = made

    def many(self, connection: Connection, objects: Iterable[Any], *beside: Any) -> int | None:
        return self.each(connection, [(beside, objects)])

    def each(self, connection: Connection, parts: Iterable[tuple[Sequence[Any], Iterable[Any]]]) -> int | None:
        """Write objects with different values beside them, in one batch."""
        row = self.row
        return self.statement.many(connection, [row(one, *beside) for beside, objects in parts for one in objects])


def in_order(statement: InsertStatement, rows: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """Return rows of named values in the order of the statement's names."""
    return [tuple([row[name] for name in statement.names]) for row in rows]


def places(*names: str) -> dict[str, Any]:
    return {name: bindparam(name) for name in names}


def numbered(word: str, count: int = KEY_PLACES) -> list[Any]:
    """Return the places of an ``IN``."""
    return [bindparam(f"{word}_{n}") for n in range(count)]


def constant(value: int | str) -> Any:
    """Return a value of ours as a part of the SQL: the planner sees it, and callers that pass places need not."""
    return literal_column(f"'{value}'" if isinstance(value, str) else str(value))


# -- parts of several statements ------------------------------------------------------------------------------

#: The values of ``Catalogue.row``.
ROW = columns_of(Row, timer, without=("task_id", "reports"), packed=timer.c.message)

#: The values of ``shard_record`` that a holder shows of itself, beside those of its row.
SHOWN = (snapshot.c.at_ms.label("snapshot_at_ms"), snapshot.c.figures.label("snapshot"))


def in_range() -> ColumnElement[bool]:
    position = tuple_(timer.c.due_ms, timer.c.seq)
    return and_(
        timer.c.shard == bindparam("shard"),
        timer.c.lane == bindparam("lane"),
        position > tuple_(bindparam("after_due_ms"), bindparam("after_seq")),
        position <= tuple_(bindparam("upto_due_ms"), bindparam("upto_seq")),
    )


def span(shard: int, lane: int, after: Position, upto: Position) -> dict[str, int]:
    first = {"shard": shard, "lane": lane, "after_due_ms": after.due_ms, "after_seq": after.seq}
    return {**first, "upto_due_ms": upto.due_ms, "upto_seq": upto.seq}


def held() -> ColumnElement[bool]:
    """Match the shard's row while the holder's epoch is current."""
    return and_(shard.c.shard == bindparam("at_shard"), shard.c.epoch == bindparam("at_epoch"))
