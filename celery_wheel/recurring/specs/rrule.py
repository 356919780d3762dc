"""Rules of RFC 5545: DTSTART, RRULE, RDATE and EXDATE, as a calendar exports them.

::

    DTSTART:20260105T090000                          wall-clock time in the recurrence's zone
    RRULE:FREQ=WEEKLY;BYDAY=MO,WE;COUNT=20           one or more
    RDATE:20260106T090000,20260108T090000            occurrences besides those of the rules
    EXDATE:20260112T090000                           occurrences that do not run; COUNT counts them

    RRule ──► rrule_text     the lines, and their errors
          └─► frequency      one RRULE: the next wall-clock time by fields

The rules mean what they mean in dateutil, with which the tests compare them. Differences from the text of the RFC, both
dateutil's: DTSTART itself occurs only where a rule or RDATE has it, and times are whole seconds up to 59.

dateutil itself walks from DTSTART, period by period, and a rule that never fires walks to the year 9999. So this
package steps by itself: a rule of 2000 with FREQ=SECONDLY answers as fast as one of today.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import ClassVar

from celery_wheel.recurring.specs.rrule_text import RuleSet, read_rules
from celery_wheel.recurring.specs.spec import Spec


@dataclass(frozen=True, slots=True)
class RRule(Spec):
    """The wall-clock times of a text of RFC 5545."""

    is_local: ClassVar[bool] = True

    text: str
    rules: RuleSet = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", read_rules(self.text, None))

    def in_zone(self, zone: tzinfo) -> RRule:
        """Return the rules with each UNTIL that is an instant (``UNTIL=…Z``) as a wall-clock time of the zone."""
        if not self.rules.has_utc:
            return self
        spec = RRule.__new__(RRule)
        object.__setattr__(spec, "text", self.text)
        object.__setattr__(spec, "rules", read_rules(self.text, zone))
        return spec

    def next_after(self, at_ms: int) -> int | None:
        rules, second = self.rules, at_ms // 1_000 + 1
        while True:
            found = [one for rule in rules.frequencies if (one := rule.next_from(second)) is not None]
            index = bisect_left(rules.added, second)
            found += rules.added[index : index + 1]
            if not found:
                return None
            if (first := min(found)) not in rules.removed:
                return first * 1_000
            second = first + 1
