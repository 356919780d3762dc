"""The results of the pipeline's jobs, for pages: their folder, their age, and one range of their rows.

::

    wheel_results = "/var/lib/wheel" ──► /var/lib/wheel/lateness ──► results_page(…) ──► figures, by Arrow
                                         /var/lib/wheel/forecast            └──────────► MissingResults: and a remedy

Promises
    1. No Java is started and PySpark is not imported: ``celery_wheel.results.reader`` reads with pyarrow alone.
    2. Without results the admin's menu does not offer the page, and the page's address says what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from celery_wheel.conf import Conf
from celery_wheel.control import now_ms
from celery_wheel.errors import FileUnusable, WheelError
from celery_wheel.results.reader import JobResults, read_results
from celery_wheel.values.text import whole_number
from django_wheel.formats import printable
from django_wheel.project import project_conf
from django_wheel.views.page import PageAdmin
from django_wheel.views.query import PageQuery

#: The page marks results that are older.
OLD_MS = 86_400_000
#: The folder in the examples of a remedy.
EXAMPLE_FOLDER = "/var/lib/wheel"
#: The jobs with a page. A job, its folder and its page have one name.
JOBS = ("lateness", "forecast")
MAX_PAGE = 10**6


@dataclass(frozen=True, slots=True)
class MissingResults:
    """``cause`` and ``remedy`` are sentences; ``line`` is the command or setting to type."""

    cause: str
    remedy: str
    line: str


@dataclass(frozen=True, slots=True)
class JobRun:
    at_ms: int | None
    age_ms: int | None

    @property
    def old(self) -> bool:
        return self.age_ms is not None and self.age_ms > OLD_MS


@dataclass(frozen=True, slots=True)
class PageRange:
    """Rows ``first`` to ``last`` of ``total``; links to the ranges beside it, None where there is none."""

    first: int
    last: int
    total: int
    before: str | None
    after: str | None


def has_results(job: str) -> bool:
    """Whether the job's page has something to show. Every page of the admin asks, so only the summary is read."""
    try:
        conf = project_conf()
        return conf is not None and missing_results(conf, job) is None
    except WheelError:  # an invalid setting: a system check names it
        return False


def missing_results(conf: Conf, job: str) -> MissingResults | None:
    """Why a job's page has nothing to show; None if it has results."""
    folder = conf.results
    run = f"celery-wheel-pipeline {job} --store <URL> --output {folder or EXAMPLE_FOLDER}/{job}"
    if folder is None:
        remedy = _("Name a folder, and let the job write into it (%(command)s).") % {"command": run}
        return MissingResults(_("wheel_results is not set."), remedy, f'CELERY_WHEEL_RESULTS = "{EXAMPLE_FOLDER}"')
    if find_spec("pyarrow") is None:
        return MissingResults(
            _("pyarrow is not installed here."), _("Install it."), "pip install 'celery-wheel[results]'"
        )
    try:
        found = read_results(folder / job, lambda results: results.job)
    except FileUnusable as error:
        return MissingResults(f"{error}.", _("Run the job as often as the page has to be up to date."), run)
    if found != job:
        cause = _("%(folder)s has the results of another job, %(job)s.") % {"folder": folder / job, "job": found}
        return MissingResults(cause, _("Let each job write into a folder of its own name."), run)
    return None


def results_page(conf: Conf, job: str, values: Callable[[JobResults], dict[str, Any]]) -> dict[str, Any]:
    """Return the values of a template from the results of a job. Raises FileUnusable if they cannot be read twice."""
    if (missing := missing_results(conf, job)) is not None:
        return {"missing": missing}

    def read(results: JobResults) -> dict[str, Any]:
        return {"run": _job_run(results), "unusable_rows": _unusable_rows(results), **values(results)}

    assert conf.results is not None  # noqa: S101 - missing_results() says so
    return read_results(conf.results / job, read)


def _job_run(results: JobResults) -> JobRun:
    if results.at is None:
        return JobRun(None, None)
    at_ms = round(results.at.timestamp() * 1_000)
    return JobRun(at_ms, max(0, now_ms() - at_ms))


def _unusable_rows(results: JobResults) -> list[tuple[str, int | None]]:
    found = results.summary.get("rejects")
    return [(reason, whole(found, reason)) for reason in sorted(found)] if isinstance(found, dict) else []


def whole(facts: dict[str, Any], name: str) -> int | None:
    """Return a count of a summary; None if the summary has no such count."""
    found = facts.get(name)
    return found if isinstance(found, int) else None


def readable(names: list[str]) -> list[str]:
    """Return the names that a filter offers: without those that a row would cut or show by codes."""
    return [name for name in names if printable(name) == name]


def moment_ms(text: Any) -> int | None:
    """Return a time of a summary; None if the text is no time."""
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1_000)
    except (TypeError, ValueError, OverflowError):
        return None


def page_number(query: PageQuery) -> int:
    text = query.text("page") or "1"
    page = whole_number(text)
    if page is not None and 1 <= page <= MAX_PAGE:
        return page
    query.problems.append(_("page must be a whole number from 1 on, got %(value)s") % {"value": repr(text)})
    return 1


def page_range(query: PageQuery, page: int, rows_a_page: int, rows: int, total: int) -> PageRange:
    """Return the range of a page with so many ``rows``, and the links to the pages beside it."""
    begin, last = (page - 1) * rows_a_page, -(-total // rows_a_page)
    before = query.link(page=min(page - 1, last)) if page > 1 and total else None
    return PageRange(begin + 1, begin + rows, total, before, query.link(page=page + 1) if page < last else None)


class ResultsAdmin(PageAdmin):
    """A page of the results of a job of the pipeline; in the menu while there are results."""

    failure = gettext_lazy("The results cannot be shown: %(error)s.")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return super().has_module_permission(request) and has_results(str(self.opts.model_name))
