"""The query string of a page, read with care. An invalid value is reported and ignored, never guessed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode

from django.http import HttpRequest, QueryDict
from django.utils.dateparse import parse_datetime
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as _

from celery_wheel.store.model import MAX_SEQ, Position
from celery_wheel.store.ports.pages import Criteria
from celery_wheel.values.text import whole_number
from django_wheel.formats import number

LINES = 100
MAX_MS = 2**62
MAX_SHARD = 255


@dataclass(slots=True)
class PageQuery:
    """The parameters of a page. ``problems``: a sentence for each value that is ignored; the page shows them."""

    query: QueryDict
    criteria: Criteria
    place: Position | None
    problems: list[str]
    task_id: str | None = None

    def text(self, name: str) -> str:
        return self.query.get(name, "").strip()

    def link(self, **changes: object) -> str:
        """Return the address of the same page with other values in its query string."""
        kept = {name: value for name, value in self.query.items() if value and name not in changes}
        return "?" + urlencode({**kept, **{name: value for name, value in changes.items() if value is not None}})

    @property
    def here(self) -> str:
        """The address of the same page with nothing selected."""
        return self.link(selected=None)

    @property
    def all_selected(self) -> str | None:
        """The address of the same page with every row selected; None if this is that address."""
        return None if self.text("selected") == "all" else self.link(selected="all")

    def next_link(self, place: Position | str | None) -> str | None:
        """Return the address of the next page, which begins after a position, or after a name."""
        if place is None:
            return None
        if isinstance(place, str):
            return self.link(after_name=place, selected=None)
        return self.link(after=f"{place.due_ms}.{place.seq}", selected=None)

    def word(self, name: str) -> str | None:
        """Return a text that every store can look for; None without one."""
        return _Values(self.query, self.problems).word(name)

    def choice(self, name: str, choices: Collection[str]) -> str | None:
        text = self.text(name)
        if not text or text in choices:
            return text or None
        rule = _("%(name)s must be one of %(choices)s, got %(value)s")
        self.problems.append(rule % {"name": name, "choices": ", ".join(choices), "value": repr(text)})
        return None


def page_query(request: HttpRequest) -> PageQuery:
    return read_query(request.GET)


def read_query(query: QueryDict) -> PageQuery:
    values = _Values(query, [])
    criteria = Criteria(
        shard=values.number("shard", MAX_SHARD),
        task=values.word("task"),
        queue=values.word("queue"),
        from_ms=values.time_ms("from"),
        to_ms=values.time_ms("to"),
    )
    return PageQuery(query, criteria, values.place("after"), values.problems, values.word("q"))


class _Values:
    """The values of a query string by type; None for a value that is absent or ignored."""

    def __init__(self, query: QueryDict, problems: list[str]) -> None:
        self.query = query
        self.problems = problems

    def word(self, name: str) -> str | None:
        text = self.query.get(name, "").strip()
        if "\x00" in text:
            self._ignore(_("%(name)s must be text without NUL characters, got %(value)s"), name)
            return None
        return text or None

    def number(self, name: str, most: int) -> int | None:
        text = self.word(name)
        if text is None:
            return None
        found = whole_number(text)
        if found is not None and found <= most:
            return found
        self._ignore(_("%(name)s must be a whole number of at most %(most)s, got %(value)s"), name, most=number(most))
        return None

    def time_ms(self, name: str) -> int | None:
        text = self.word(name)
        if text is None or whole_number(text) is not None:
            return self.number(name, MAX_MS)
        moment_ms = _moment_ms(text)
        if moment_ms is None:
            rule = _("%(name)s must be a date and time like 2026-11-21 08:30, or Unix milliseconds, got %(value)s")
            self._ignore(rule, name)
        return moment_ms

    def place(self, name: str) -> Position | None:
        text = self.word(name)
        if text is None:
            return None
        due_ms, seq = (whole_number(part) for part in text.partition(".")[::2])
        if due_ms is not None and seq is not None and due_ms <= MAX_MS and seq <= MAX_SEQ:
            return Position(due_ms, seq)
        self._ignore(_("%(name)s must be a cursor from the link to a next page, got %(value)s"), name)
        return None

    def _ignore(self, rule: str, name: str, **more: str) -> None:
        self.problems.append(rule % {"name": name, "value": repr(self.query.get(name, "")), **more})


def _moment_ms(text: str) -> int | None:
    """Parse a date and time; without a zone it is in the current time zone."""
    try:
        moment = parse_datetime(text)
    except ValueError:
        return None
    if moment is None:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=get_current_timezone())
    return round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
