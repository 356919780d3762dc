"""The problems of the wheel page: their counts since the holders began, and which of them a user has not seen yet.

A user marks the shown counts as seen; they are kept in the session, with the moments at which the holders began to
count: another process begins anew, and all of its counts are new. So a session keeps nine numbers, whatever the store
has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseRedirect
from django.utils.translation import gettext as _

from celery_wheel.control import Wheel, now_ms
from celery_wheel.overview import Overview
from celery_wheel.values.text import whole_number
from django_wheel.formats import Moments
from django_wheel.project import project_wheel
from django_wheel.views.requests import address

PROBLEMS = "django_wheel/front/problems.html"
#: The session's key.
KEY = "wheel_seen"
#: Problems of the page.
SHOWN = 9


class Problem(NamedTuple):
    label: str
    total: int
    link: str = ""


class Seen(NamedTuple):
    """The counts that a user has marked as seen, in the order of the page."""

    at_ms: int
    began: int
    counts: tuple[int, ...]


class Problems(NamedTuple):
    began: int  #: sum of the moments at which the holders began to count; a holder that adopts again counts on
    found: list[Problem]
    last_ms: int | None  #: of the last rejected or expired task
    since: str

    def values(self, seen: Seen | None, times: Moments) -> dict[str, Any]:
        """Return the values of the part: each problem with the number that is new since the user has looked."""
        before = seen.counts if seen is not None and seen.began == self.began else ()
        known = [*before, *[0] * (len(self.found) - len(before))]
        new = [max(0, one.total - count) for one, count in zip(self.found, known, strict=True)]
        counts = ".".join(str(one.total) for one in self.found)
        return {
            "problems": list(zip(self.found, new, strict=True)),
            "new": sum(new),
            "total": sum(one.total for one in self.found),
            "shown": f"{self.began}.{counts}",
            "seen": times.moment(seen.at_ms) if before and seen is not None else "",
            "last": times.distance(self.last_ms),
            "since": self.since,
        }


def problems_of(wheel: Wheel, overview: Overview, times: Moments, links: Any) -> Problems:
    snapshots = [one.snapshot for one in overview.shards if one.snapshot]
    found = list(_problems(wheel, snapshots, links))
    last = wheel.outcomes("rejected", "expired", limit=1).items if found[0].total or found[1].total else []
    began = sum(one.get("began_ms", 0) for one in snapshots)
    return Problems(began, found, last[0].at_ms if last else None, since_begin(snapshots, times))


def _problems(wheel: Wheel, snapshots: list[dict[str, Any]], links: Any) -> Iterator[Problem]:
    def count(name: str) -> int:
        return sum(one.get(name, 0) for one in snapshots)

    yield Problem(_("Rejected"), count("rejected"), links.rejected)
    yield Problem(_("Expired"), count("expired"), f"{links.rejected}?kind=expired")
    yield Problem(_("Errors of the store"), count("store_errors"))
    yield Problem(_("Errors of the broker"), count("broker_errors"))
    yield Problem(_("Rollbacks of the broker"), count("rollbacks") + count("emptied"))
    yield Problem(_("Messages that the store lost"), count("store_lost"))
    yield Problem(_("Guard trips"), count("guard_trips"))
    schedules = wheel.schedule_counts()
    yield Problem(_("Broken schedules, now"), schedules.broken, f"{links.schedules}?state=broken")
    yield Problem(_("Failing schedules, now"), schedules.failing, f"{links.schedules}?state=active")


def since_begin(snapshots: list[dict[str, Any]], times: Moments) -> str:
    began = [one["began_ms"] for one in snapshots if one.get("began_ms")]
    if not began:
        return _("since this holder began")
    text = _("since this holder began, %(time)s") if len(began) == 1 else _("since the holders began, first %(time)s")
    return text % {"time": times.moment(min(began))}


def seen_of(request: HttpRequest, store: str) -> Seen | None:
    """Return what the user of a session has marked as seen in this store."""
    kept = request.session.get(KEY)
    if not isinstance(kept, dict) or kept.get("store") != store or "began" not in kept:  # as an older version kept it
        return None
    return Seen(kept["at_ms"], kept["began"], tuple(kept["counts"]))


def mark_seen(request: HttpRequest) -> HttpResponse:
    """Keep the counts that the page has shown: a problem since then is new."""
    numbers = [whole_number(one) for one in request.POST.get("seen", "").split(".")]
    if len(numbers) < 2 or None in numbers:
        return HttpResponseBadRequest("seen must be the value of the page's button", content_type="text/plain")
    began, *counts = numbers
    store = project_wheel().store.uuid
    request.session[KEY] = {"store": store, "at_ms": now_ms(), "began": began, "counts": counts[:SHOWN]}
    return HttpResponseRedirect(address(request, "wheel_changelist"))
