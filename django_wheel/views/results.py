"""What the pipeline's jobs have left, for pages: where it is, whether it can be shown, and which part of it.

::

    wheel_results = "/var/lib/wheel" ──► /var/lib/wheel/lateness ──► found(…) ──► figures, by Arrow
                                         /var/lib/wheel/forecast        └────────► Absent: why not, and what to do

Promises
    1. No Java is started and PySpark is not imported: ``celery_wheel.pipeline.results`` reads with pyarrow alone.
    2. Where there is nothing to show, the admin's menu does not offer the page, and its address says what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from typing import Any

from celery_wheel.conf import Conf
from celery_wheel.control import now_ms
from celery_wheel.errors import FileUnusable, WheelError
from celery_wheel.pipeline.results import Results, reading
from django_wheel.present import seen
from django_wheel.project import conf
from django_wheel.views.request import Asked

#: Older results are pointed out.
OLD_MS = 86_400_000

RESULTS = "/var/lib/wheel"
#: Those that have a page. A job, its folder and its page have one name.
JOBS = ("lateness", "forecast")


@dataclass(frozen=True, slots=True)
class Absent:
    """``why`` there is nothing to show, and ``what`` to do: words, and a line to type."""

    why: str
    what: str
    line: str


@dataclass(frozen=True, slots=True)
class Age:
    at_ms: int | None
    ms: int | None

    @property
    def old(self) -> bool:
        return self.ms is not None and self.ms > OLD_MS


@dataclass(frozen=True, slots=True)
class Part:
    """Lines ``first`` to ``last`` of so many; links to the parts beside it, None where there is none."""

    first: int
    last: int
    of: int
    before: str | None
    after: str | None


def there(job: str) -> bool:
    """Whether the job's page has something to show. For every page of the admin: only the summary is read."""
    try:
        found = conf()
        return found is not None and absent(found, job) is None
    except WheelError:  # a setting that makes no sense: a system check names it
        return False


def absent(conf: Conf, job: str) -> Absent | None:
    """Why a job's page has nothing to show; None where it has."""
    folder = conf.results
    run = f"celery-wheel-pipeline {job} --store <URL> --output {folder or RESULTS}/{job}"
    if folder is None:
        line = f'CELERY_WHEEL_RESULTS = "{RESULTS}"'
        return Absent("wheel_results is not set", f"Name a folder, and let the job write into it: {run}", line)
    if find_spec("pyarrow") is None:
        return Absent("pyarrow is not installed here", "Install it", "pip install 'celery-wheel[results]'")
    try:
        found = reading(folder / job, lambda results: results.job)
    except FileUnusable as error:
        return Absent(str(error), "Run the job, as often as the page is to be up to date", run)
    if found != job:
        why = f"{folder / job} has the results of another job: {found}"
        return Absent(why, "Let each job write into a folder of its name", run)
    return None


def shown(conf: Conf, job: str, show: Callable[[Results], dict[str, Any]]) -> dict[str, Any]:
    """What a template needs of the results of a job. Raises FileUnusable where they cannot be read twice."""
    if (nothing := absent(conf, job)) is not None:
        return {"absent": nothing}

    def read(results: Results) -> dict[str, Any]:
        return {"age": _age(results), "rejects": _rejects(results), **show(results)}

    assert conf.results is not None  # noqa: S101 - absent() says so
    return reading(conf.results / job, read)


def _age(results: Results) -> Age:
    if results.at is None:
        return Age(None, None)
    at_ms = round(results.at.timestamp() * 1_000)
    return Age(at_ms, max(0, now_ms() - at_ms))


def _rejects(results: Results) -> list[tuple[str, int | None]]:
    found = results.summary.get("rejects")
    return [(reason, whole(found, reason)) for reason in sorted(found)] if isinstance(found, dict) else []


def whole(facts: dict[str, Any], name: str) -> int | None:
    """A count of a summary; None where it has none of that name."""
    found = facts.get(name)
    return found if isinstance(found, int) else None


def readable(names: list[str]) -> list[str]:
    """For a filter to offer: a name that a line would cut or show by codes can only be asked for by hand."""
    return [name for name in names if seen(name) == name]


def moment_ms(text: Any) -> int | None:
    """An instant of a summary; None for what is none."""
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1_000)
    except (TypeError, ValueError, OverflowError):
        return None


def page_number(asked: Asked) -> int:
    text = asked.text("page") or "1"
    if text.isascii() and text.isdecimal() and 1 <= int(text[:10]) <= 10**6:
        return int(text[:10])
    asked.problems.append(f"page must be a whole number from 1 on, got {text!r}")
    return 1


def part_of(asked: Asked, number: int, lines: int, count: int, of: int) -> Part:
    """Part ``number`` of parts of so many ``lines``, which has ``count`` of them."""
    begin, last = (number - 1) * lines, -(-of // lines)
    before = asked.link(page=min(number - 1, last)) if number > 1 and of else None
    return Part(begin + 1, begin + count, of, before, asked.link(page=number + 1) if number < last else None)
