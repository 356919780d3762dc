"""``once``: a task whose changes of a database are committed once, however many copies of its message are run.

::

    BEGIN
      INSERT INTO celery_wheel_once       the marker of the task; a second copy waits here for the first one
      the task itself                     by the same transaction
      UPDATE celery_wheel_once            the task's result, as the result backend would have it
    COMMIT

    a copy that comes later    finds the marker, runs nothing, and returns that result: so the task succeeds again, and
                               what hangs on its success (links, a chain, a chord) is sent, if the first worker was
                               killed before it could do so
    an exception, a retry      the marker is rolled back with the changes: another copy, or the retry, runs the task

The marker is of the task's name and id. So no retry runs a task that another copy has done, and a task that is sent
again under the same id, requeued or replayed is not run again while its marker is kept.

Promises: the changes that the task makes by this transaction are committed once. Non-promises: what it changes
elsewhere (another database, an e-mail), and tasks that it sends.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from hashlib import sha256
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import sqlalchemy as sa
from celery import Task
from celery._state import get_current_task
from celery.backends.base import DisabledBackend
from kombu import serialization
from kombu.exceptions import EncodeError
from sqlalchemy.orm import Session, sessionmaker

from celery_wheel.errors import SettingError, WheelError
from celery_wheel.values.error_text import error_text
from celery_wheel.values.instants import now_ms
from celery_wheel.values.log import get_logger
from celery_wheel.worker.batches import Batches

NAME = "celery_wheel_once"

#: For so long a second copy may come: as long as a scheduler keeps the history by which it knows messages.
RETENTION = timedelta(days=7)

#: One run of so many removes up to ten times as many old markers: faster than others are made.
REMOVED_EACH, REMOVED_AT_ONCE = 100, 1_000

F = TypeVar("F", bound=Callable[..., Any])

#: The attribute of a task's request while its function runs: what the function calls is not the task.
_RUNS = "wheel_once_runs"

# Without types in kombu.
_dumps: Any = serialization.dumps
_loads: Any = serialization.loads
_prepare_accept_content: Any = serialization.prepare_accept_content

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _TaskMarker:
    """The marker of a task with an id."""

    id: str  #: SHA-256 of its name and its id; hexadecimal
    task: Any

    @classmethod
    def of(cls, task: Any) -> _TaskMarker:
        name = json.dumps([task.name, task.request.id])
        return cls(sha256(name.encode()).hexdigest(), task)

    def encode(self, result: Any) -> bytes:
        """Return a result as the marker keeps it: None for one that nobody asks for and no backend could store.

        Raises kombu's EncodeError for any other that no backend could store.
        """
        backend, serializer = self.task.backend, self.task.backend.serializer
        try:
            kind, encoding, data = _dumps(backend.prepare_value(result), serializer=serializer)
        except EncodeError:
            if not self.task.request.ignore_result and not isinstance(backend, DisabledBackend):
                raise
            kind, encoding, data = _dumps(None, serializer=serializer)
        raw = data.encode() if isinstance(data, str) else bytes(data)
        return f"{kind}\n{encoding}\n".encode() + raw

    def decode(self, kept: bytes | None) -> Any:
        """Return the result of a marker. Raises WheelError for one without."""
        if kept is None:
            raise WheelError(
                "another copy of the task was done, and its result is not known: the task has ended the transaction of "
                "once itself, which must be left to it"
            )
        kind, encoding, data = bytes(kept).split(b"\n", 2)
        backend = self.task.backend
        accept = backend.accept | _prepare_accept_content([backend.serializer])
        return _loads(data, kind.decode(), encoding.decode(), accept=accept)


class IsDone(Exception):
    """Another copy has committed the task."""


class Ledger(Protocol):
    """The markers of a database, in its transactions."""

    #: The keyword argument by which the task gets the transaction; None: it has it without.
    gives: str | None

    def check(self) -> None:
        """Raise SettingError where the database lacks the table of markers."""

    def transaction(self) -> AbstractContextManager[Any]:
        """Begin a transaction; yields what the task gets. Commits, or rolls back where an exception leaves it."""

    def add(self, given: Any, id_: str, until_ms: int) -> None:
        """Add a marker. Raises IsDone where another transaction has committed it, after that one has ended."""

    def keep(self, given: Any, id_: str, result: bytes) -> None:
        """Keep the result in the marker."""

    def result(self, id_: str) -> bytes | None:
        """Return the result of a marker, if one is committed; outside the transaction."""

    def remove(self, now_ms: int, most: int) -> None:
        """Remove markers whose time has passed, in a transaction of its own."""


def once(database: sa.Engine | sessionmaker[Any], *, retention: timedelta = RETENTION) -> Callable[[F], F]:
    """Return the decorator for tasks that change a database by SQLAlchemy. It stands below ``@app.task``.

    The task gets the transaction by its keyword ``connection``, of an Engine, or ``session``, of a sessionmaker, and
    must not end it. ``once_table`` describes the table of markers. For Django: ``django_wheel.once``.

    Args:
        retention: for so long a copy of the task's message is known.
    """
    return once_in(SqlLedger(database), retention)


def once_table(metadata: sa.MetaData) -> sa.Table:
    """Return the table of markers, for migrations, or for ``once_table(metadata).create(engine)``."""
    return sa.Table(
        NAME,
        metadata,
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("until_ms", sa.BigInteger, nullable=False, index=True),
        sa.Column("result", sa.LargeBinary(2**24)),  # for MySQL, whose columns without a length have 64 KiB
    )


_MARKERS = once_table(sa.MetaData())


class SqlLedger:
    """Implements ``Ledger`` by SQLAlchemy."""

    def __init__(self, database: sa.Engine | sessionmaker[Any]) -> None:
        if not isinstance(database, sa.Engine | sessionmaker):
            raise TypeError(f"once must have an Engine or a sessionmaker of SQLAlchemy, got {database!r}")
        if isinstance(database, sessionmaker) and not issubclass(database.class_, Session):
            raise TypeError(f"once must have a sessionmaker of plain sessions, got one of {database.class_.__name__}")
        self._database = database
        self.gives: str | None = "connection" if isinstance(database, sa.Engine) else "session"

    def check(self) -> None:
        with self.transaction() as given:
            if not sa.inspect(_connection(given)).has_table(NAME):
                raise SettingError(
                    f"the database of once must have the table {NAME}, got none; nothing was run; make it by "
                    "celery_wheel.once_table(metadata) in your migrations, or once_table(metadata).create(engine)"
                )

    def transaction(self) -> AbstractContextManager[Any]:
        return self._database.begin()

    def add(self, given: Any, id_: str, until_ms: int) -> None:
        try:
            _connection(given).execute(sa.insert(_MARKERS).values(id=id_, until_ms=until_ms))
        except sa.exc.IntegrityError as error:
            raise IsDone from error

    def keep(self, given: Any, id_: str, result: bytes) -> None:
        _connection(given).execute(sa.update(_MARKERS).where(_MARKERS.c.id == id_).values(result=result))

    def result(self, id_: str) -> bytes | None:
        with self.transaction() as given:
            found: bytes | None = _connection(given).scalar(sa.select(_MARKERS.c.result).where(_MARKERS.c.id == id_))
        return found

    def remove(self, now_ms: int, most: int) -> None:
        old = sa.select(_MARKERS.c.id).where(_MARKERS.c.until_ms < now_ms).limit(most)
        with self.transaction() as given:
            connection = _connection(given)
            ids = connection.scalars(old).all()
            connection.execute(sa.delete(_MARKERS).where(_MARKERS.c.id.in_(ids)))


def _connection(given: Any) -> sa.Connection:
    return given.connection() if isinstance(given, Session) else given


def once_in(ledger: Ledger, retention: timedelta) -> Callable[[F], F]:
    """Return the decorator for tasks whose markers are in a ledger."""
    if retention <= timedelta():
        raise SettingError(f"retention must be a positive timedelta, got {retention!r}")

    def decorate(function: F) -> F:
        if isinstance(function, Task):
            raise TypeError("once must be below @app.task, where it gets the function, got the task")
        kinds = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
        if any(is_kind(function) for is_kind in kinds):
            raise TypeError(f"once must have a function that ends in its transaction, got {function!r}")
        signature = inspect.signature(function)
        given = signature.parameters.get(ledger.gives or "")
        if ledger.gives and (given is None or given.kind is not inspect.Parameter.KEYWORD_ONLY):
            raise TypeError(
                f"the task must take the keyword {ledger.gives!r} after a *, got {function.__name__}{signature}: what "
                "it changes by another one is in another transaction"
            )
        one = _OneTask(ledger, function, retention // timedelta(milliseconds=1))

        @wraps(function)
        def once(*args: Any, **kwargs: Any) -> Any:
            task = get_current_task()
            return one.call(args, kwargs) if task is None or not _is_run_of(task, once) else one.run(task, args, kwargs)

        others = [one for name, one in signature.parameters.items() if name != ledger.gives]
        once.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return once  # type: ignore[return-value]

    return decorate


def _check_rollback(ledger: Ledger) -> None:
    """Raise SettingError where what a transaction has changed stays after a rollback: in autocommit, by MyISAM."""
    probe = uuid4().hex
    with suppress(IsDone), ledger.transaction() as given:
        ledger.add(given, probe, 0)
        ledger.keep(given, probe, b"")
        raise IsDone
    if ledger.result(probe) is not None:
        raise SettingError(
            "once must have a database with transactions, got one that keeps what was rolled back, by autocommit or by "
            "the kind of its table: a marker would be committed before the changes; nothing was run"
        )


def _is_run_of(task: Any, function: Callable[..., Any]) -> bool:
    """Whether a function is called as the run of the current task, and not by it or by another task as any function."""
    if task.request.id is None or vars(task.request).get(_RUNS):
        return False
    found = task.run
    while found is not None and getattr(found, "__func__", found) is not function:
        found = getattr(found, "__wrapped__", None)  # of autoretry_for, and of other decorators
    return found is not None


class _OneTask:
    """Runs the function of one task."""

    def __init__(self, ledger: Ledger, function: Callable[..., Any], kept_ms: int) -> None:
        self._ledger, self._function, self._kept_ms = ledger, function, kept_ms
        self._is_checked = False

    def call(self, args: Any, kwargs: Any) -> Any:
        """Run the function by a plain call, which has no message, of which there could be two."""
        self._check()
        with self._ledger.transaction() as given:
            return self._call(given, args, kwargs)

    def run(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Run the function for a message of its task."""
        if isinstance(task, Batches):
            raise TypeError(f"once must be on a task of one call, got {task.name}, whose base is Batches")
        self._check()
        ledger, marker, began_ms = self._ledger, _TaskMarker.of(task), now_ms()
        setattr(task.request, _RUNS, True)
        is_over = False
        try:
            with ledger.transaction() as given:
                ledger.add(given, marker.id, began_ms + self._kept_ms)
                result = self._call(given, args, kwargs)
                ledger.keep(given, marker.id, marker.encode(result))
                is_over = True
        except IsDone:
            logger.info("task %s %s was done by another copy; its result is returned", task.name, task.request.id)
            return marker.decode(ledger.result(marker.id))
        except Exception:
            # The answer to COMMIT is lost, or what Django calls after it has failed: the task may be done all the same.
            if not is_over or ledger.result(marker.id) is None:
                raise
            logger.warning("task %s %s is committed; after it:", task.name, task.request.id, exc_info=True)
        finally:
            setattr(task.request, _RUNS, False)
        if int(marker.id[:8], 16) % REMOVED_EACH == 0:
            self._remove_old(began_ms)
        return result

    def _check(self) -> None:
        if not self._is_checked:
            self._ledger.check()
            _check_rollback(self._ledger)
            self._is_checked = True

    def _call(self, given: Any, args: Any, kwargs: Any) -> Any:
        if self._ledger.gives:
            kwargs = {**kwargs, self._ledger.gives: given}
        return self._function(*args, **kwargs)

    def _remove_old(self, now_ms: int) -> None:
        try:
            self._ledger.remove(now_ms, REMOVED_AT_ONCE)
        except Exception as error:
            # The task is committed. Another run removes them.
            logger.warning("old markers of once stay for now: %s", error_text(error))
