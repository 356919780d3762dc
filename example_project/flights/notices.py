"""Notices of a storm: each airline is a group of the wheel, so the many notices of one delay no other's.

A file of its own, as ``orders``: each card of the board has one.
"""

from typing import Any

from django.db.models import Count, F, Max, Q

from flights.models import Notice
from flights.replay import now_ms
from flights.tasks import notify

AIRLINES = ("AA", "B6", "DL", "UA")

#: Notices of the airline in the storm, and of each other one.
STORM, OTHERS = 400, 5


def storm(airline: str) -> int:
    """Send the notices of an airline in a storm, and then those of the others; returns how many."""
    sent_at_ms = now_ms()
    counts = {airline: STORM, **{other: OTHERS for other in AIRLINES if other != airline}}
    notices = [Notice(airline=code, sent_at_ms=sent_at_ms) for code, count in counts.items() for _ in range(count)]
    for notice in Notice.objects.bulk_create(notices):
        notify.apply_async([notice.pk], wheel={"group": f"airline:{notice.airline}"})
    return len(notices)


def by_airline() -> list[dict[str, Any]]:
    """Return airline, sent, waiting, and the longest wait of those that ran, in ms, of the last storm."""
    last = Notice.objects.aggregate(at=Max("sent_at_ms"))["at"]
    found = Notice.objects.filter(sent_at_ms=last).values("airline").order_by("airline")
    counts = {"sent": Count("pk"), "waiting": Count("pk", filter=Q(ran_at_ms=None))}
    return list(found.annotate(**counts, waited_ms=Max(F("ran_at_ms") - F("sent_at_ms"))))
