"""The errors that celery-wheel raises on purpose.

All derive from ``WheelError``. Each error is also the builtin that it resembles, so that ``except ValueError`` and
``except OSError`` keep their meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any


class WheelError(Exception):
    """Base class of all errors of celery-wheel."""


class SettingError(WheelError, ValueError):
    """A setting is invalid: ``<name> must be <rule>, got <value>``."""


class DestinationError(WheelError, ValueError):
    """The task names one of the wheel's own queues as its destination. Nothing was sent."""


class ArgumentError(WheelError, ValueError):
    """An argument of a request is invalid: ``<name> must be <rule>, got <value>``. Nothing was sent."""


class RecurrenceError(WheelError, ValueError):
    """A recurring schedule is invalid or never fires: ``<field> must be <rule>, got <value>``."""


class ScheduleExists(WheelError, ValueError):
    """A recurring schedule of that name exists already. Nothing was changed."""


class PackageMissing(WheelError, ImportError):
    """An optional package is not installed; the message names the extra that installs it."""


def import_extra(module: str, extra: str, reason: str) -> Any:
    """Return a module of an optional package. Raises PackageMissing; its text begins with ``reason``: ``X needs``."""
    try:
        return import_module(module)
    except ImportError as error:
        raise PackageMissing(f"{reason} {module} ({error}); run: pip install 'celery-wheel[{extra}]'") from error


class StoreError(WheelError, OSError):
    """The store failed; the last change may be committed or not."""


class StoreUnusable(StoreError):
    """The store cannot be used at all: its folder is missing, its tables are newer, or it is no store."""


class StoreNotReady(StoreUnusable):
    """The store cannot be used now: another process has it locked, or its server starts or does not answer."""


class StoreOutdated(StoreUnusable):
    """The tables are missing or of another version, and another command than this process makes them."""


class StoreUnused(StoreUnusable):
    """No scheduler has used the store yet: it has no rows, or no tables where the scheduler makes them."""


class LoadEnded(WheelError, RuntimeError):
    """This process may no longer write to the bulk load: the load ended, or another process took it over."""


class FileUnusable(WheelError, ValueError):
    """A file has the wrong content: no drain wrote it, it is incomplete, or another file has its name."""


class Fenced(WheelError, PermissionError):
    """A newer epoch holds the shard; this holder may change nothing any more."""


class RequestWithdrawn(WheelError, LookupError):
    """The sender withdrew the command before the holder committed it: nothing was written."""


class BrokerError(WheelError, ConnectionError):
    """The broker did not answer; the last call may have taken effect or not."""


class StoreConflict(WheelError, RuntimeError):
    """The broker belongs to another store, or the store to another broker; nothing was changed or dispatched."""


class NothingWritten(StoreError):
    """A transaction was rolled back before its commit, for a reason that passes: a lock, a session that ended."""


class StoreRolledBack(StoreError):
    """The store lacks messages whose acceptance it had confirmed; nothing was written."""


class CommitInDoubt(StoreError):
    """A change may be committed or not: the holder drops its memory and adopts its shard anew."""


class PublishInterrupted(BrokerError):
    """The connection broke in the middle of a chunk; the rows in ``confirmed`` are in their queues."""

    def __init__(self, message: str, confirmed: set[int]) -> None:
        super().__init__(message)
        self.confirmed = confirmed


class WheelUnavailable(WheelError, TimeoutError):
    """No scheduler answered in time; the request was withdrawn from the ``shards`` that were silent.

    ``results`` has the results that are certain. The answer of another shard stays: a gate that it closed is closed
    there, and a cancelled task that it did not know is not dispatched if it arrives there within a day.
    """

    def __init__(self, message: str, results: Mapping[str, Any] | None = None, shards: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.results = dict(results or {})
        self.shards = tuple(shards)


class RequestInDoubt(StoreError):
    """A request may still be carried out: the store was away for the time-out. ``results`` has the certain results."""

    def __init__(self, message: str, results: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.results = dict(results or {})


class RequestInterrupted(WheelError, RuntimeError):
    """The task that awaited the request was cancelled; the awaiter itself gets CancelledError, caused by this error."""


class NotCommitted(WheelError, RuntimeError):
    """The transaction that a request is part of is still open, or was rolled back: there is no result."""


class OffsetLost(WheelError, LookupError):
    """The broker no longer has this holder's offset: it was flushed, or lost writes."""


class InvariantBroken(WheelError, AssertionError):
    """The holder's memory is inconsistent: it is dropped, and the shard is adopted anew. A defect: report it."""


class GuardTripped(InvariantBroken):
    """The store counts other rows in a range than the chunk has: nothing is dispatched before the window is rebuilt."""


class EpochEnded(WheelError, RuntimeError):
    """The holder's epoch has ended; its memory is dropped and the shard is adopted anew."""


class LeaseExpired(WheelError, TimeoutError):
    """The lease has expired or is about to expire; nothing is published before it is renewed."""
