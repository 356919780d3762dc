"""Random specs from a seed: texts, together with their meaning for the oracle."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

_DAY_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_RFC_DAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")


@dataclass(frozen=True)
class CrontabText:
    """The fields of a crontab in Celery's order, and the sets of numbers that they mean."""

    fields: tuple[str, str, str, str, str]
    minutes: frozenset[int]
    hours: frozenset[int]
    weekdays: frozenset[int]  #: Sunday is 0
    days: frozenset[int]
    months: frozenset[int]

    def has(self, local: datetime) -> bool:
        return (
            local.minute in self.minutes
            and local.hour in self.hours
            and local.isoweekday() % 7 in self.weekdays
            and local.day in self.days
            and local.month in self.months
            and local.second == 0
        )


def random_crontab(random: Random) -> CrontabText:
    """Return a crontab that is dense enough to meet a change of the clocks."""
    minute = _field(random, 0, 59, 0.3)
    hour = _field(random, 0, 23, 0.4)
    weekday = _field(random, 0, 6, 0.7, _DAY_NAMES)
    day = _field(random, 1, 31, 0.7)
    month = _field(random, 1, 12, 0.8, _MONTH_NAMES)
    texts = tuple(text for text, _ in (minute, hour, weekday, day, month))
    return CrontabText(texts, minute[1], hour[1], weekday[1], day[1], month[1])  # type: ignore[arg-type]


def _field(random: Random, low: int, high: int, all_: float, names: tuple[str, ...] = ()) -> tuple[str, frozenset[int]]:
    if random.random() < all_:
        return "*", frozenset(range(low, high + 1))
    parts = [_part(random, low, high, names) for _ in range(random.choice((1, 1, 1, 2, 3)))]
    return ",".join(text for text, _ in parts), frozenset().union(*(numbers for _, numbers in parts))


def _part(random: Random, low: int, high: int, names: tuple[str, ...]) -> tuple[str, frozenset[int]]:
    kind, step = random.randrange(4), random.randint(1, max(2, (high - low) // 2))
    first, last = random.randint(low, high), random.randint(low, high)
    whole = list(range(low, high + 1))
    # A range whose end is before its start goes on from the least value.
    span = whole[first - low : last - low + 1] if first <= last else whole[first - low :] + whole[: last - low + 1]

    def name(number: int) -> str:
        return names[number - low] if names and random.random() < 0.5 else str(number)

    if kind == 0:
        return name(first), frozenset({first})
    if kind == 1:
        return f"*/{step}", frozenset(whole[::step])
    if kind == 2:
        return f"{name(first)}-{name(last)}", frozenset(span)
    return f"{name(first)}-{name(last)}/{step}", frozenset(span[::step])


def random_rrule(random: Random, start: datetime, *, fine: bool) -> str:
    """Return DTSTART and an RRULE. ``fine``: hours, minutes or seconds, which dateutil walks from DTSTART."""
    freq = random.choice(("HOURLY", "MINUTELY", "SECONDLY") if fine else ("YEARLY", "MONTHLY", "WEEKLY", "DAILY"))
    parts = [f"FREQ={freq}"]
    if random.random() < 0.5:
        parts.append(f"INTERVAL={random.choice((1, 2, 3, 4, 5, 7, 13, 90) if fine else (1, 1, 2, 3, 4, 5))}")
    if random.random() < 0.2:
        parts.append(f"WKST={random.choice(_RFC_DAYS)}")
    parts += _day_parts(random, freq)
    for name, limit, chance in (("BYHOUR", 23, 0.3), ("BYMINUTE", 59, 0.3), ("BYSECOND", 59, 0.15)):
        if random.random() < chance:
            parts.append(f"{name}={_numbers(random, 0, limit, 4)}")
    if not fine and len(parts) > 2 and random.random() < 0.25:
        parts.append(f"BYSETPOS={_numbers(random, 1, 6, 3, negative=True)}")
    if random.random() < 0.15:
        parts.append(f"COUNT={random.randint(1, 60)}")
    elif random.random() < 0.15:
        parts.append(
            f"UNTIL={start + timedelta(days=random.randint(1, 4_000), seconds=random.randint(0, 9)):%Y%m%dT%H%M%S}"
        )
    lines = [f"DTSTART:{start:%Y%m%dT%H%M%S}", "RRULE:" + ";".join(parts)]
    if random.random() < 0.15:
        lines.append(f"RDATE:{start + timedelta(days=3, hours=1):%Y%m%dT%H%M%S}")
    if random.random() < 0.15:
        lines.append(f"EXDATE:{start:%Y%m%dT%H%M%S},{start + timedelta(days=7):%Y%m%dT%H%M%S}")
    return "\n".join(lines)


def _day_parts(random: Random, freq: str) -> list[str]:
    parts = []
    if random.random() < 0.3:
        parts.append(f"BYMONTH={_numbers(random, 1, 12, 4)}")
    kind = random.randrange(6)
    if kind == 0 and freq != "WEEKLY":
        parts.append(f"BYMONTHDAY={_numbers(random, 1, 31, 4, negative=True)}")
    elif kind == 1 and freq in ("YEARLY", "HOURLY", "MINUTELY", "SECONDLY"):
        parts.append(f"BYYEARDAY={_numbers(random, 1, 366, 5, negative=True)}")
    elif kind == 2 and freq == "YEARLY":
        parts.append(f"BYWEEKNO={_numbers(random, 1, 53, 3)}")
    elif kind == 3 and freq in ("YEARLY", "MONTHLY"):
        limit = 5 if freq == "MONTHLY" or parts else 53
        days = {f"{random.choice(('', '-'))}{random.randint(1, limit)}{random.choice(_RFC_DAYS)}" for _ in range(2)}
        parts.append(f"BYDAY={','.join(sorted(days))}")
    elif kind in (3, 4):
        parts.append(f"BYDAY={','.join(random.sample(_RFC_DAYS, random.randint(1, 5)))}")
    return parts


def _numbers(random: Random, low: int, high: int, most: int, *, negative: bool = False) -> str:
    numbers = {random.randint(low, high) for _ in range(random.randint(1, most))}
    return ",".join(str(-number if negative and random.random() < 0.3 else number) for number in sorted(numbers))
