"""Compare recurrences with the oracles: ``python -m tests.unit.recurring.proof --specs 10000``.

::

    crontab    each spec in a zone, the zones in turn    walk of minutes: five changes of the zone, in turn, and a
                                                         random instant of 2000 to 2040, 13 hours to either side
               the same spec                             Celery's own crontab, from run to run, in the same windows
    rrule      a rule without a zone                     dateutil: the first 40 times, and 10 times from a random one
               the same rule in the zone                 dateutil's times, made instants by the walk, in two windows

    walk       each minute of UTC in 78 hours, and what a clock in the zone shows (zoneinfo): the instants at which it
               shows a time (in a fold two, in a gap none), and those to which a gap moves
    changes    each instant of 2000 to 2040 at which the offset changes, found every six hours of UTC: since 2000 all
               offsets are multiples of 15 minutes, so a walk by minutes meets each change

With 10,000 specs a zone has 17, which look at 85 changes: all of 2000 to 2040, in every zone. A difference from
Celery or dateutil that has a name below is counted; any other difference is printed and ends in exit 1.
"""

import argparse
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from itertools import islice
from random import Random
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from celery.schedules import crontab
from dateutil.rrule import rrulestr

from celery_wheel.errors import RecurrenceError
from celery_wheel.recurring import Crontab, Recurrence, RRule
from celery_wheel.recurring.local import FOLDS, GAPS
from tests.unit.recurring.random_specs import CrontabText, random_crontab, random_rrule

ZONES = sorted(available_timezones() - {"Factory", "localtime"})

#: Differences between Celery's crontab (5.7) and a recurrence with gap="shift" and fold="first", with the reason why
#: celery-wheel keeps its own rule.
CELERY_DIFFERENCES = {
    "only the first of a gap": (
        "Of the times of one gap Celery runs the first, moved by the gap's length, and goes on from the moved time by "
        "the wall clock: the others of the gap never run, nor do times between the gap and the moved one, which there "
        "are where a gap is no whole hour. A recurrence moves each time of the gap, and runs the others as well."
    ),
}
#: Differences between dateutil (2.9) and an RRule, with the reason why celery-wheel keeps the rule of RFC 5545.
DATEUTIL_DIFFERENCES = {
    "first week by position": (
        "With FREQ=WEEKLY and BYSETPOS dateutil counts the days of the first week from DTSTART on; RFC 5545 counts in "
        "the whole week, also in the first."
    ),
    "last week of the year before": (
        "With BYWEEKNO dateutil counts a week too many in a year before that began with a part of a week: it takes the "
        "first days of January for days of week 53. RFC 5545 counts as ISO 8601 does."
    ),
}
_RFC_DAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
#: A rule for which dateutil works longer is left out, and counted.
DATEUTIL_SECONDS = 0.4


MINUTE = timedelta(minutes=1)
HALF = timedelta(hours=39)
#: The part in the middle whose times, shifted by up to 24 hours, lie in the walk as well.
COMPARED = timedelta(hours=13)
FIRST, LAST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC)


def to_ms(at: datetime) -> int:
    return round(at.timestamp() * 1_000)


class Walk:
    """The minutes around an instant."""

    def __init__(self, zone: str, around: datetime) -> None:
        self.start, self.end = around - COMPARED, around + COMPARED
        self.by_local: dict[datetime, list[datetime]] = {}
        self.moved: dict[datetime, datetime] = {}
        tz, at = ZoneInfo(zone), around - HALF
        before: datetime | None = None
        while at <= around + HALF:
            aware = at.astimezone(tz)
            local = aware.replace(tzinfo=None, fold=0)
            if at > around - COMPARED:
                assert aware.fold == (local in self.by_local), "the datetime's own fold marks the second time"
            self.by_local.setdefault(local, []).append(at)
            if before is not None and local > before + MINUTE:
                missing, instant = before + MINUTE, at
                while missing < local:
                    self.moved[missing] = instant
                    missing, instant = missing + MINUTE, instant + MINUTE
            before, at = local, at + MINUTE
        self.locals = sorted({*self.by_local, *self.moved})

    def occurrences(self, locals_: Iterable[datetime], gap: str, fold: str) -> list[int]:
        """Return the instants of wall-clock times in the middle part, by the rules for gap and fold."""
        found: set[datetime] = set()
        for local in locals_:
            second, minute = timedelta(seconds=local.second), local.replace(second=0)
            if instants := self.by_local.get(minute):
                chosen = {"first": instants[:1], "second": instants[-1:], "both": instants}[fold]
                found.update(at + second for at in chosen)
            elif gap == "shift" and minute in self.moved:
                found.add(self.moved[minute] + second)
        return [to_ms(at) for at in sorted(found) if self.start <= at <= self.end]


@lru_cache(maxsize=100)
def walk(zone: str, around: datetime) -> Walk:
    return Walk(zone, around)


@lru_cache(maxsize=4)
def changes(zone: str) -> tuple[datetime, ...]:
    tz, step = ZoneInfo(zone), timedelta(hours=6)
    found, at = [], FIRST
    offset = at.astimezone(tz).utcoffset()
    while at < LAST:
        at += step
        if (new := at.astimezone(tz).utcoffset()) != offset:
            found.append(at)
            offset = new
    return tuple(found)


class _Conf:
    enable_utc = True
    beat_cron_starting_deadline = None


class _App:
    """The part of a Celery app that its schedules read."""

    conf = _Conf()

    def __init__(self, zone: str) -> None:
        self.timezone = ZoneInfo(zone)


def celery_runs(fields: tuple[str, ...], zone: str, start: datetime, end: datetime) -> list[int]:
    """Return the runs after ``start`` and up to ``end``, of a beat that looks at each instant that Celery names."""
    now = [start.astimezone(ZoneInfo(zone))]
    schedule = crontab(*fields, app=_App(zone), nowfun=lambda: now[0])
    found = []
    while True:
        remaining = schedule.remaining_estimate(now[0])
        at = now[0].astimezone(UTC) + remaining
        if at > end:
            return found
        assert remaining > timedelta(0), f"{fields} in {zone} is due again at once at {at}"
        found.append(to_ms(at))
        now[0] = at.astimezone(ZoneInfo(zone))


def prove_crontab(text: CrontabText, zone: str, around: datetime, gap: str, fold: str) -> Iterator[str]:
    """Yield the differences in one window: from the walk as texts, from Celery by their name."""
    seen = walk(zone, around)
    spec = Crontab(*text.fields)
    recurrence = Recurrence(spec, zone, gap=gap, fold=fold)  # type: ignore[arg-type]
    locals_ = [local for local in seen.locals if text.has(local)]
    expected = seen.occurrences(locals_, gap, fold)
    found = list(recurrence.between(to_ms(seen.start) - 1, to_ms(seen.end)))
    if found != expected:
        yield f"{recurrence} near {around}: {_difference(expected, found)}"
    ours = list(Recurrence(spec, zone).between(to_ms(seen.start) - 1, to_ms(seen.end)))
    theirs = celery_runs(text.fields, zone, seen.start - timedelta(seconds=1), seen.end)
    if ours != theirs:
        yield _celery_difference(seen, locals_, ours, theirs) or (
            f"Celery's {text.fields} in {zone} near {around}: {_difference(theirs, ours)}"
        )


def _celery_difference(seen: Walk, locals_: list[datetime], ours: list[int], theirs: list[int]) -> str | None:
    in_gap = [to_ms(seen.moved[local]) for local in locals_ if local in seen.moved]
    passed = set(in_gap[1:])
    if in_gap:
        passed |= {at_ms for at_ms in ours if to_ms(min(seen.moved.values())) <= at_ms < in_gap[0]}
    if set(theirs) < set(ours) and set(ours) - set(theirs) <= passed:
        return "only the first of a gap"
    return None


def prove_rrule(random: Random, zone: str, arounds: list[datetime]) -> Iterator[str]:
    """Yield the differences of one random rule from dateutil, and in its zone from the walk."""
    fine = random.random() < 0.4
    around = arounds[0].replace(tzinfo=None, second=0)
    back = timedelta(days=random.randint(0, 6 if fine else 9_000), minutes=random.randint(0, 1_440))
    start = max(around - back, FIRST.replace(tzinfo=None))
    text = random_rrule(random, start, fine=fine)
    try:
        spec = RRule(text)
        recurrence = Recurrence(spec, zone)
    except RecurrenceError as error:
        yield from _refused(text, str(error))
        return
    try:
        with at_most(DATEUTIL_SECONDS):
            differences = list(_from_dateutil(random, text, spec, start))
            yield from differences
            for window in [] if differences else arounds[: 1 if fine else 2]:
                yield from _in_zone(random, text, recurrence, walk(zone, window), zone)
    except TimeoutError:
        yield "dateutil takes too long"


def _from_dateutil(random: Random, text: str, spec: RRule, start: datetime) -> Iterator[str]:
    later = start + timedelta(days=random.randint(0, 60), seconds=random.randint(0, 86_400))
    for after, number in ((start - timedelta(seconds=1), 40), (later, 10)):
        expected, found = _both(text, spec, after, number)
        if found != expected[: len(found)] or (len(found) < len(expected) and expected[len(found)] < _local_ms(LAST)):
            yield _dateutil_difference(text, start, expected, found) or (
                f"{text!r} after {after}: {_difference(expected, found)}"
            )
            return


def _both(text: str, spec: RRule, after: datetime, number: int) -> tuple[list[int], list[int]]:
    theirs: Any = rrulestr(text, forceset=True)
    expected = [_local_ms(local) for local in islice(theirs.xafter(after, inc=False), number)]
    return expected, _following(spec, _local_ms(after), number)


def _in_zone(random: Random, text: str, recurrence: Recurrence, seen: Walk, zone: str) -> Iterator[str]:
    gap, fold = random.choice(GAPS), random.choice(FOLDS)
    low, high = seen.locals[0], seen.locals[-1]
    locals_ = rrulestr(text, forceset=True).between(low, high, inc=True)
    expected = seen.occurrences(locals_, gap, fold)
    own = Recurrence(recurrence.spec, zone, gap=gap, fold=fold)
    found = list(own.between(to_ms(seen.start) - 1, to_ms(seen.end)))
    by_week = "BYWEEKNO" in text and any(map(_is_early_january, {*expected, *found}))
    if found != expected and not (text.count("WEEKLY") and "BYSETPOS" in text) and not by_week:
        yield f"{own}: {_difference(expected, found)}"


def _dateutil_difference(text: str, start: datetime, expected: list[int], found: list[int]) -> str | None:
    week_later = _local_ms(start + timedelta(days=7))
    if "WEEKLY" in text and "BYSETPOS" in text:
        same = [one for one in expected if one >= week_later][:5] == [one for one in found if one >= week_later][:5]
        return "first week by position" if same or "COUNT" in text else None
    if "BYWEEKNO" in text and "BYSETPOS" in text:  # the positions are those among the days of the weeks
        text = re.sub(";BYSETPOS=[^;\n]*", "", text)
        expected, found = _both(text, RRule(text), start - timedelta(seconds=1), 400)
    if "BYWEEKNO" in text and expected != found and _differ_in_january(text, expected, found):
        return "last week of the year before"
    return None


def _differ_in_january(text: str, expected: list[int], found: list[int]) -> bool:
    """Whether two lists differ only in the first days of January, which ``found`` has by their weeks."""
    numbers = {int(one) for one in text.partition("BYWEEKNO=")[2].partition(";")[0].split("\n")[0].split(",")}
    first_day = _RFC_DAYS.index(text.partition("WKST=")[2][:2] or "MO")
    end = min(expected[-1:] + found[-1:], default=0)  # the lists have the same length, and so not the same end
    expected, found = ([at_ms for at_ms in one if at_ms <= end] for one in (expected, found))
    theirs = set(expected) - set(found)
    rest = [[at_ms for at_ms in one if not _is_early_january(at_ms)] for one in (expected, found)]
    return (
        rest[0] == rest[1]
        and all(_week(at_ms, first_day) in numbers for at_ms in found if _is_early_january(at_ms))
        and all(_week(at_ms, first_day) not in numbers for at_ms in theirs)
    )


def _is_early_january(at_ms: int) -> bool:
    at = datetime.fromtimestamp(at_ms / 1_000, UTC)
    return at.month == 1 and at.day <= 3


def _week(at_ms: int, first_day: int) -> int:
    """Return the number of a day's week: the year of a week is that of its fourth day."""
    at = datetime.fromtimestamp(at_ms / 1_000, UTC)
    middle = at - timedelta(days=(at.weekday() - first_day) % 7 - 3)
    return (middle.timetuple().tm_yday - 1) // 7 + 1


def _refused(text: str, error: str) -> Iterator[str]:
    """Yield a difference where dateutil finds an occurrence of a refused rule before 2040."""
    try:
        with at_most(DATEUTIL_SECONDS):
            first = next(iter(rrulestr(text.partition("\nRDATE")[0])), None)
            if first is not None and first < LAST.replace(tzinfo=None):
                yield f"{text!r} is refused ({error}), and dateutil finds {first}"
            else:
                yield "refused: never fires"
    except TimeoutError:
        yield "refused: never fires"
    except ValueError:  # dateutil refuses as well
        yield "refused: never fires"


def _following(spec: RRule, at_ms: int, number: int) -> list[int]:
    found: list[int] = []
    while len(found) < number and (after := spec.next_after(at_ms)) is not None:
        found.append(at_ms := after)
    return found


def _local_ms(local: datetime) -> int:
    return to_ms(local.replace(tzinfo=UTC))


def _difference(expected: list[int], found: list[int]) -> str:
    missing, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    return f"{len(missing)} missing {missing[:3]}, {len(extra)} too many {extra[:3]}"


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread after so much work: dateutil may walk to the year 9999."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def prove(specs: int, seed: int = 0, numbers: range | None = None) -> tuple[Counter[str], list[str]]:
    """Return how often each named difference was seen, and all differences without a name.

    Args:
        numbers: the specs to compare of all ``specs``; None for all. A spec depends on its number and the seed alone.
    """
    counts: Counter[str] = Counter()
    unnamed: list[str] = []
    each = -(-specs // len(ZONES))
    zones = Random(seed).sample(ZONES, len(ZONES))
    for number in numbers or range(specs):
        zone, turn = zones[number // each], number % each
        for difference in prove_one(Random(f"{seed}/{number}"), zone, turn, counts):
            if difference in NAMED:
                counts[difference] += 1
            else:
                unnamed.append(difference)
                print(difference, flush=True)
        counts["specs"] += 1
        if counts["specs"] % 100 == 0:
            print(f"up to {number}: {dict(counts)}", file=sys.stderr, flush=True)
    return counts, unnamed


def prove_one(random: Random, zone: str, turn: int, counts: Counter[str]) -> Iterator[str]:
    """Yield the differences of one spec: a crontab and a rule of RFC 5545."""
    all_changes = changes(zone)
    in_turn = [all_changes[(turn * 5 + number) % len(all_changes)] for number in range(5)] if all_changes else []
    span = (LAST - FIRST) // timedelta(minutes=15)
    at_random = [FIRST + random.randrange(span) * timedelta(minutes=15)]
    counts["windows"] += len(in_turn) + 1
    text = random_crontab(random)
    try:
        Crontab(*text.fields)
    except RecurrenceError:
        counts["refused: never fires"] += 1
    else:
        for around in in_turn + at_random:
            yield from prove_crontab(text, zone, around, random.choice(GAPS), random.choice(FOLDS))
    yield from prove_rrule(random, zone, random.sample(in_turn, len(in_turn)) + at_random)


NAMED = {*CELERY_DIFFERENCES, *DATEUTIL_DIFFERENCES, "refused: never fires", "dateutil takes too long"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare recurrences with the oracles.")
    parser.add_argument("--specs", type=int, default=10_000, help="Number of random specs.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the specs.")
    parser.add_argument("--processes", type=int, default=1, help="Number of processes.")
    options = parser.parse_args()
    share = -(-options.specs // options.processes)
    shares = [range(low, min(low + share, options.specs)) for low in range(0, options.specs, share)]
    with ProcessPoolExecutor(options.processes) as processes:
        results = list(processes.map(partial(prove, options.specs, options.seed), shares))
    unnamed = [difference for _, found in results for difference in found]
    print(dict(sum((counts for counts, _ in results), Counter())))
    print(f"{len(unnamed)} differences without a name")
    sys.exit(bool(unnamed))


if __name__ == "__main__":
    main()
