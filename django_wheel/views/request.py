"""What a page is asked for: its query string, read with care. What makes no sense is told, and nothing is guessed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode

from django.http import HttpRequest, QueryDict
from django.utils.dateparse import parse_datetime
from django.utils.timezone import get_current_timezone

from celery_wheel.store.model import MAX_SEQ, Position
from celery_wheel.store.ports.pages import Criteria

LINES = 100
MAX_MS = 2**62


@dataclass(slots=True)
class Asked:
    """``problems``: what was not understood, in words; the page shows it and goes on without."""

    query: QueryDict
    criteria: Criteria
    place: Position | None
    problems: list[str]
    task_id: str | None = None

    def text(self, name: str) -> str:
        return self.query.get(name, "").strip()

    def link(self, **changes: object) -> str:
        """The same page with other words in its query string."""
        kept = {name: value for name, value in self.query.items() if value and name not in changes}
        return "?" + urlencode({**kept, **{name: value for name, value in changes.items() if value is not None}})

    @property
    def here(self) -> str:
        """The same page once more, with nothing selected."""
        return self.link(selected=None)

    @property
    def all_selected(self) -> str | None:
        """The same page with every line selected; None where it is that."""
        return None if self.text("selected") == "all" else self.link(selected="all")

    def next_link(self, place: Position | None) -> str | None:
        return None if place is None else self.link(after=f"{place.due_ms}.{place.seq}", selected=None)


def asked(request: HttpRequest) -> Asked:
    query, problems = request.GET, list[str]()

    def told(name: str, rule: str) -> None:
        problems.append(f"{name} must be {rule}, got {query.get(name, '')!r}")

    def words(name: str) -> str | None:
        found = query.get(name, "").strip()
        if "\x00" in found:
            told(name, "text without NUL characters")
            return None
        return found or None

    def number(name: str, most: int) -> int | None:
        found = words(name)
        if found is None:
            return None
        digits = found.lstrip("0") or found[-1:]  # Python refuses to convert very many
        if found.isascii() and found.isdecimal() and len(digits) <= len(str(most)) and int(digits) <= most:
            return int(digits)
        told(name, f"a whole number of at most {most:,}")
        return None

    def time_ms(name: str) -> int | None:
        found = words(name)
        if found is None or (found.isascii() and found.isdecimal()):
            return number(name, MAX_MS)
        moment = _moment(found)
        if moment is None:
            told(name, "a date and time like 2026-11-21 08:30, or Unix milliseconds")
        return moment

    criteria = Criteria(
        shard=number("shard", 255),
        task=words("task"),
        queue=words("queue"),
        from_ms=time_ms("from"),
        to_ms=time_ms("to"),
    )
    return Asked(query, criteria, _place(words("after"), problems), problems, words("q"))


def _moment(text: str) -> int | None:
    """A date and time without a zone is of the current one."""
    try:
        moment = parse_datetime(text)
    except ValueError:
        return None
    if moment is None:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=get_current_timezone())
    return round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)


def _place(text: str | None, problems: list[str]) -> Position | None:
    if text is None:
        return None
    due, _, seq = text.partition(".")
    if all(one.isascii() and one.isdecimal() and len(one) < 20 for one in (due, seq)):
        place = Position(int(due), int(seq))
        if place.due_ms <= MAX_MS and place.seq <= MAX_SEQ:
            return place
    problems.append(f"after must be a place as the link to the next page has it, got {text!r}")
    return None
