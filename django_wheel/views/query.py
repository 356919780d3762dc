"""The query string of a page, read with care. An invalid value is reported and ignored, never guessed."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlencode

from django.core.exceptions import ValidationError
from django.http import QueryDict
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as _

from celery_wheel.store.model import MAX_SEQ, Position
from celery_wheel.store.ports.pages import Criteria
from celery_wheel.values.text import whole_number
from django_wheel.formats import number
from django_wheel.forms import moment_ms

LINES = 100
MAX_MS = 2**62
MAX_SHARD = 255


class PageQuery:
    """The parameters of a page by type; None for a value that is absent or ignored.

    ``problems`` has a sentence for each value that is ignored; the page shows them.
    """

    def __init__(self, query: QueryDict) -> None:
        self.query = query
        self.problems: list[str] = []
        self.criteria = Criteria(
            shard=self._number("shard", MAX_SHARD),
            task=self.word("task"),
            queue=self.word("queue"),
            group=self.word("group"),
            from_ms=self._time_ms("from"),
            to_ms=self._time_ms("to"),
        )
        self.place = self._place("after")
        self.task_id = self.word("q")

    def text(self, name: str) -> str:
        return self.query.get(name, "").strip()

    def word(self, name: str) -> str | None:
        """Return a text that every store can look for."""
        text = self.text(name)
        if "\x00" in text:
            self._ignore(_("%(name)s must be text without NUL characters, got %(value)s"), name)
            return None
        return text or None

    def choice(self, name: str, choices: Collection[str]) -> str | None:
        text = self.text(name)
        if not text or text in choices:
            return text or None
        self._ignore(_("%(name)s must be one of %(choices)s, got %(value)s"), name, text, choices=", ".join(choices))
        return None

    def _number(self, name: str, most: int) -> int | None:
        text = self.word(name)
        if text is None:
            return None
        found = whole_number(text)
        if found is not None and found <= most:
            return found
        self._ignore(_("%(name)s must be a whole number of at most %(most)s, got %(value)s"), name, most=number(most))
        return None

    def _time_ms(self, name: str) -> int | None:
        text = self.word(name)
        if text is None or whole_number(text) is not None:
            return self._number(name, MAX_MS)
        try:
            return moment_ms(text, get_current_timezone())
        except ValidationError:
            rule = _("%(name)s must be a date and time like 2026-11-21 08:30, or Unix milliseconds, got %(value)s")
            self._ignore(rule, name)
        return None

    def _place(self, name: str) -> Position | None:
        text = self.word(name)
        if text is None:
            return None
        due_ms, seq = (whole_number(part) for part in text.partition(".")[::2])
        if due_ms is not None and seq is not None and due_ms <= MAX_MS and seq <= MAX_SEQ:
            return Position(due_ms, seq)
        self._ignore(_("%(name)s must be a cursor from the link to a next page, got %(value)s"), name)
        return None

    def _ignore(self, rule: str, name: str, value: str | None = None, **more: str) -> None:
        shown = self.query.get(name, "") if value is None else value
        self.problems.append(rule % {"name": name, "value": repr(shown), **more})

    # -- links to the same page ---------------------------------------------------------------------------

    def link(self, **changes: object) -> str:
        """Return the address of the same page with other values in its query string."""
        kept = {name: value for name, value in self.query.items() if value and name not in changes}
        return "?" + urlencode({**kept, **{name: value for name, value in changes.items() if value is not None}})

    @property
    def here(self) -> str:
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
