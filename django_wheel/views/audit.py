"""The audit log: a page with filters, and the log as CSV or JSON lines.

An export reads page after page while the browser receives it, so that its length does not matter. A line of the CSV is
the result of a name; a line of JSON is an entry of a chain, and the file can be checked as a whole.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from types import SimpleNamespace
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib import admin
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.urls import URLPattern, path
from django.utils.functional import Promise
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from celery_wheel.control import Wheel
from celery_wheel.errors import ArgumentError, WheelError
from celery_wheel.requests.audit import export as export_lines
from celery_wheel.requests.audit import with_reasons
from celery_wheel.store.audit_model import ORIGINS, PEOPLE, AuditCriteria, AuditedRequest
from celery_wheel.values import pages_of
from celery_wheel.values.format import format_utc
from celery_wheel.values.mask import unquoted
from django_wheel import models
from django_wheel.formats import gate_label, number, result_label, results_text
from django_wheel.project import masked_text, project_wheel
from django_wheel.views.erase import erase_page
from django_wheel.views.page import READING, PageAdmin, may_erase, may_view_payload
from django_wheel.views.query import LINES, PageQuery

ACTIONS: dict[str, Promise] = {
    "cancel": _("cancel"),
    "run_now": _("run now"),
    "reschedule": _("reschedule"),
    "requeue": _("requeue"),
    "replay": _("replay"),
    "complete": _("complete"),
    "pause": _("pause"),
    "resume": _("resume"),
    "set_limits": _("set limits"),
    "clear_limits": _("clear limits"),
    "accept_clock": _("accept the clock"),
    "erase": _("erase"),
    "bulk_begin": _("begin a bulk action"),
    "bulk_stop": _("stop a bulk action"),
    "bulk_continue": _("continue a bulk action"),
    "bulk_discard": _("discard a bulk action"),
    "bulk_end": _("end of a bulk action"),
    "schedule_create": _("create a schedule"),
    "schedule_put": _("create or change a schedule"),
    "schedule_update": _("replace a schedule"),
    "schedule_patch": _("change a schedule"),
    "schedule_rollback": _("roll a schedule back"),
    "schedule_delete": _("delete a schedule"),
    "schedule_pause": _("pause a schedule"),
    "schedule_resume": _("resume a schedule"),
    "schedule_trigger": _("run a schedule"),
    "schedule_backfill": _("backfill a schedule"),
    "schedule_restore": _("import a schedule"),
    "load": _("load many tasks"),
    "abort_load": _("abort a load"),
    "revoke_stamps": _("revoke by stamped headers"),
    "drain": _("drain"),
    "import": _("import"),
    "reshard": _("reshard"),
    "claim_broker": _("claim the broker"),
    "claim_store": _("claim the store"),
    "move_store": _("move the store"),
    "migrate": _("migrate"),
}
#: Names of a request that the page shows.
NAMES = 20
#: Requests that an export holds in memory.
EXPORT_PAGE = 200

FIELDS = ("asked", "person", "origin", "action", "name", "result", "reason", "details", "bulk", "request", "entries")
TEXT = "text/plain; charset=utf-8"
FORMATS = {"csv": "text/csv", "jsonl": "application/x-ndjson"}
#: A program for tables takes a text that begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # full width, too


@dataclass(frozen=True, slots=True)
class AuditLine:
    request: AuditedRequest

    @property
    def action(self) -> str | Promise:
        return ACTIONS.get(self.request.action, self.request.action)

    @property
    def summary(self) -> str:
        """Return the action with its first name, and how many more there are."""
        names = list(self.request.results)
        first = self._shown(names[0]) if names else ""
        text, more = f"{capfirst(str(self.action))}: {first}", len(names) - 1
        found = ngettext("%(text)s and %(count)s more", "%(text)s and %(count)s more", more)
        return text if more < 1 else found % {"text": text, "count": number(more)}

    @property
    def counts(self) -> str:
        return results_text(Counter(_word(result) for result in self.request.results.values()))

    @property
    def names(self) -> list[tuple[str, str]]:
        shown = islice(self.request.results.items(), NAMES)
        return [
            (self._shown(name), f"{result_label(_word(result))} {_reason(result)}".strip()) for name, result in shown
        ]

    def _shown(self, name: str) -> str:
        """Return a name as a page shows it; that of a gate is its scope and the name of a queue or a task."""
        return gate_label(*name.split(":", 1)) if self.request.action in ("pause", "resume") and ":" in name else name

    @property
    def more(self) -> int:
        return max(0, len(self.request.results) - NAMES)


def audit(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    criteria = _criteria(query)
    try:
        page = wheel.audit(query.word("after_name"), LINES, **criteria)
    except ArgumentError as error:
        query.problems.append(str(error))
        page = wheel.audit(None, LINES, **criteria)
    exports = [(name, f"export/{name}/{query.link(after_name=None)}") for name in FORMATS]
    lines = [AuditLine(one) for one in page.items]
    actions = [(name, label, name == criteria["action"]) for name, label in ACTIONS.items()]
    origins = [(name, name == criteria["origin"]) for name in (PEOPLE, *ORIGINS)]
    return {"page": page, "lines": lines, "actions": actions, "origins": origins, "exports": exports, **criteria}


def export(request: HttpRequest, form: str) -> HttpResponseBase:
    """Return the requests that match the query, as a file that is written while it is read."""
    wheel, query = project_wheel(), PageQuery(request.GET)
    criteria = _criteria(query)
    if query.problems:  # more would match
        text = _("Nothing was done, because the filter has an error: %(error)s.")
        return HttpResponse(text % {"error": "; ".join(query.problems)}, status=400, content_type=TEXT)
    hidden = not may_view_payload(request)
    try:
        if form == "csv":
            lines = _csv(wheel, criteria, hidden)
        else:
            lines = export_lines(wheel.store, AuditCriteria(**criteria), wheel.mask, without_values=hidden)
        first = list(islice(lines, 1))  # an error of the store is an answer of its own, and not half a file
    except (WheelError, ImproperlyConfigured) as error:
        return HttpResponse(masked_text(str(error)), status=503, content_type=TEXT)
    lines = chain(first, lines)
    parts = _parts(lines) if isinstance(request, ASGIRequest) else lines
    response = StreamingHttpResponse(parts, content_type=f"{FORMATS[form]}; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="wheel-audit.{form}"'
    response["X-Content-Type-Options"] = "nosniff"
    return response


async def _parts(lines: Iterator[str]) -> AsyncIterator[str]:
    """Yield some lines at a time: under ASGI, Django reads the whole of an iterator that is not asynchronous first."""
    read = sync_to_async(lambda: "".join(islice(lines, EXPORT_PAGE)))
    while part := await read():
        yield part


def _criteria(query: PageQuery) -> dict[str, Any]:
    words = {name: query.word(name) for name in ("actor", "name", "bulk")}
    chosen = {"action": query.choice("action", ACTIONS), "origin": query.choice("origin", (PEOPLE, *ORIGINS))}
    return {**words, **chosen, "from_ms": query.criteria.from_ms, "to_ms": query.criteria.to_ms}


def _csv(wheel: Wheel, criteria: dict[str, Any], hidden: bool) -> Iterator[str]:
    writer: Any = csv.writer(SimpleNamespace(write=str))  # its writerow returns the line
    pages = pages_of(lambda before: wheel.audit(before, EXPORT_PAGE, **criteria), None)
    first = next(pages)  # before any line
    yield writer.writerow(FIELDS)
    for one in chain(first.items, chain.from_iterable(page.items for page in pages)):
        results = with_reasons(one.results, unquoted) if hidden else one.results
        start = (format_utc(one.at_ms), one.actor, one.origin, one.action)
        end = (
            one.reason,
            json.dumps(one.details, ensure_ascii=False),
            one.bulk or "",
            one.request,
            " ".join(one.entries),
        )
        for name, result in results.items():
            result_text = f"{_word(result)} {_reason(result)}".strip()
            yield writer.writerow([_cell(text) for text in (*start, name, result_text, *end)])


def _cell(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text


def _word(result: Any) -> str:
    if not isinstance(result, dict):
        return str(result)
    return str(result.get("result") or ("done" if result.get("done", True) else "unknown"))  # an erasure has counts


def _reason(result: Any) -> str:
    """Return the other parts of a result: a reason, or counts."""
    if not isinstance(result, dict):
        return ""
    return ", ".join(
        str(value) if name == "reason" else f"{name} {value}" for name, value in result.items() if name != "result"
    )


@admin.register(models.Audit)
class AuditAdmin(PageAdmin):
    template = "django_wheel/audit.html"
    values = staticmethod(audit)

    def more_urls(self, name: str) -> list[URLPattern]:
        exports = {form: self.guarded(partial(export, form=form)) for form in FORMATS}
        erase = self.for_operators(partial(erase_page, self), (*READING, "POST"), may_erase)
        return [
            *(path(f"export/{form}/", view, name=f"{name}_{form}") for form, view in exports.items()),
            path("erase/", erase, name=f"{name}_erase"),
        ]
