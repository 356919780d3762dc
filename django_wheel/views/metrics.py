"""``/metrics`` of a Django project: the totals of the store, and the counts of the holders' last snapshots.

The project adds the view to its own URLs. Histograms and the wheel queues are on the scheduler's own page alone: only
the process that publishes knows them. A file of its own, as each page has one.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from celery_wheel.errors import StoreError
from celery_wheel.metrics.prometheus import page_of
from celery_wheel.metrics.samples import Totals, store_metrics
from django_wheel.project import project_wheel


@require_safe
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics in the format that the scraper accepts; 503 where the store cannot be read."""
    wheel = project_wheel()
    try:
        totals = Totals(wheel.overview(), wheel.schedule_counts())
    except StoreError as error:
        return HttpResponse(f"{error}\n", status=503, content_type="text/plain; charset=utf-8")
    body, content_type = page_of(lambda: store_metrics(totals), request.headers.get("Accept", ""))
    return HttpResponse(body, content_type=content_type)
