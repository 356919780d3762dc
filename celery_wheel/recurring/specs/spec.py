"""``Spec``, the base class of all specs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import tzinfo
from typing import ClassVar, Self


class Spec(ABC):
    """A rule for instants. A spec is a value: equal specs have the same occurrences."""

    __slots__ = ()

    #: Whether the spec's milliseconds are wall-clock times, as if the zone were UTC. A Recurrence makes instants
    #: of them.
    is_local: ClassVar[bool] = False

    @abstractmethod
    def next_after(self, at_ms: int) -> int | None:
        """Return the first occurrence strictly after ``at_ms``; None where there is none."""

    def in_zone(self, zone: tzinfo) -> Self:
        """Return the spec for use in a zone: another one, if the definition has both instants and wall-clock times."""
        return self
