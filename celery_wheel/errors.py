"""Everything celery-wheel raises on purpose.

One base class, ``WheelError``; each error is also the builtin it is, so that
``except ValueError`` and ``except OSError`` keep meaning what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class WheelError(Exception):
    """Base class of all errors of celery-wheel."""


class SettingError(WheelError, ValueError):
    """A setting makes no sense: ``<name> must be <rule>, got <value>``."""


class DestinationError(WheelError, ValueError):
    """A task cannot be sent there: the queue is one of the wheel's own. Nothing was sent."""


class ArgumentError(WheelError, ValueError):
    """An argument of a request makes no sense: ``<name> must be <rule>, got <value>``. Nothing was sent."""


class StoreError(WheelError, OSError):
    """The store did not answer as it should; what was written is unknown."""


class StoreUnusable(StoreError):
    """The store cannot be used at all: unreachable folder, newer schema, not a store."""


class StoreOutdated(StoreUnusable):
    """The tables are not those that this version needs, or not there, and are not this process's to make."""


class StoreUnused(StoreUnusable):
    """The tables are there; no scheduler has used them yet."""


class LoadOver(WheelError, RuntimeError):
    """A bulk load, or a part of it, is not this process's to write any more: ended, or taken over."""


class FileUnusable(WheelError, ValueError):
    """A file is not what it is to be: not one that a drain made, not whole, or in the way of one."""


class Fenced(WheelError, PermissionError):
    """A newer epoch holds the shard; this holder may change nothing any more."""


class RequestWithdrawn(WheelError, LookupError):
    """The asker of a command withdrew it before the holder could commit it: nothing was written."""


class BrokerError(WheelError, ConnectionError):
    """The broker did not answer; whether the last call took effect is unknown."""


class StoreConflict(WheelError, RuntimeError):
    """The broker's wheel queue belongs to another store; nothing was changed there, and nothing is dispatched."""


class CommitInDoubt(StoreError):
    """Whether a change is in the store is unknown: the holder drops its memory and adopts its shard anew."""


class Interrupted(BrokerError):
    """The broker went away in the middle of a chunk; the rows in ``confirmed`` are in their queues."""

    def __init__(self, message: str, confirmed: set[int]) -> None:
        super().__init__(message)
        self.confirmed = confirmed


class WheelUnavailable(WheelError, TimeoutError):
    """No scheduler answered in time; the request was withdrawn. ``verdicts`` has what is certain all the same."""

    def __init__(self, message: str, verdicts: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.verdicts = dict(verdicts or {})


class NotCommitted(WheelError, RuntimeError):
    """The transaction that a request is part of is still open, or was rolled back: there is no verdict."""


class OffsetLost(WheelError, LookupError):
    """The broker no longer has the offset that this holder left there: it was flushed, or lost writes."""


class InvariantBroken(WheelError, AssertionError):
    """The holder's memory is not as it must be: it is dropped, and the shard is adopted anew. A defect: report it."""


class GuardTripped(InvariantBroken):
    """The store's count of a range differs from the chunk: nothing leaves before the window is rebuilt."""


class EpochOver(WheelError, RuntimeError):
    """The holder's epoch is over; its memory is dropped and the shard is adopted anew."""


class LeaseOver(WheelError, TimeoutError):
    """The lease has run out, or is about to; nothing is published before it is renewed."""
