"""The wheel in the Django admin: pages that read the store or results, and pages that send requests to the holders.

::

    page        address                              permission
    Wheel       …/django_wheel/wheel/  and  live/    view_wheel or operate_wheel
    Pending     …/pending/  and  <id>/  <id>/body/   the same
    History     …/history/                           the same
    Rejected    …/rejected/                          the same
    Batches     …/batch/                             the same
    Shards      …/shard/                             the same
    Lateness    …/lateness/                          the same; in the menu if there are results
    Forecast    …/forecast/                          the same
    Schedules   …/schedule/ …                        the same; see ``schedule_admin``

    requests    …/pending/act/    POST               operate_wheel
                …/wheel/gate/     GET, POST          operate_wheel

There are no other addresses. Django's own forms to add, change and delete are not reachable: a task
whose row is changed by any process but the holder may be lost or run twice. So an action is a request to the holder.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import ImproperlyConfigured
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from celery_wheel.control import Wheel
from celery_wheel.errors import WheelError
from celery_wheel.store.ports.pages import Detail
from django_wheel import models
from django_wheel.page_admin import READING, PageAdmin
from django_wheel.project import project_wheel
from django_wheel.schedule_admin import ScheduleAdmin
from django_wheel.views import gates, lists, results, task_requests
from django_wheel.views.forecast import forecast
from django_wheel.views.lateness import lateness
from django_wheel.views.query import PageQuery
from django_wheel.views.wheel import wheel_values

admin.site.register(models.Schedule, ScheduleAdmin)


@admin.register(models.Wheel)
class WheelAdmin(PageAdmin):
    template = "django_wheel/wheel.html"
    values = staticmethod(wheel_values)

    def more_urls(self, name: str) -> list[URLPattern]:
        return [
            path("live/", self.guarded(self.live), name=f"{name}_live"),
            path("gate/", self.for_operators(self.gate, (*READING, "POST")), name=f"{name}_gate"),
        ]

    def page(self, request: HttpRequest) -> HttpResponse:
        jobs = {job: results.has_results(job) for job in results.JOBS}
        return self.answer(request, self.template, self.values, jobs=jobs)

    def live(self, request: HttpRequest) -> HttpResponse:
        return self.answer(request, "django_wheel/levels.html", self.values)

    def gate(self, request: HttpRequest) -> HttpResponse:
        """Show the form; or, when the user has sent it, pause or resume."""
        action = gates.gate_action(request)
        form = gates.gate_form(request, action)
        if request.method == "POST" and form.is_valid():
            gates.carry_out(request, action, form)
            return HttpResponseRedirect(
                reverse("admin:django_wheel_wheel_changelist", current_app=self.admin_site.name)
            )
        more = {"title": action.label, "action": action, "form": form}
        return self.answer(request, "django_wheel/gate.html", gates.gate_values, **more)


@admin.register(models.Pending)
class PendingAdmin(PageAdmin):
    template = "django_wheel/pending.html"
    values = staticmethod(lists.pending)

    def more_urls(self, name: str) -> list[URLPattern]:
        return [
            path("act/", self.for_operators(self.act, ("POST",)), name=f"{name}_act"),
            path("<int:timer_id>/", self.guarded(self.one), name=f"{name}_one"),
            path("<int:timer_id>/body/", self.guarded(self.body), name=f"{name}_body"),
        ]

    def act(self, request: HttpRequest) -> HttpResponse:
        """Ask for confirmation of an action on the selected tasks; or carry it out."""

        def render(title: str, values: dict[str, Any]) -> HttpResponse:
            return self.answer(request, "django_wheel/confirm.html", lambda wheel, query: values, title=title)

        return task_requests.handle(request, render)

    def one(self, request: HttpRequest, timer_id: int) -> HttpResponse:
        def values(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
            return lists.task_values(_detail(wheel, timer_id))

        title = gettext("Task %(number)s") % {"number": timer_id}
        return self.answer(request, "django_wheel/task.html", values, title=title)

    def body(self, request: HttpRequest, timer_id: int) -> HttpResponse:
        """Return the bytes of the body, for a browser to save and not to show."""
        try:
            detail = _detail(project_wheel(), timer_id)
        except (WheelError, ImproperlyConfigured) as error:
            return HttpResponse(str(error), status=503, content_type="text/plain; charset=utf-8")
        response = HttpResponse(detail.body, content_type="application/octet-stream")
        response["Content-Disposition"] = f'attachment; filename="{timer_id}.bin"'
        response["X-Content-Type-Options"] = "nosniff"
        return response


def _detail(wheel: Wheel, timer_id: int) -> Detail:
    found = wheel.store.browse.detail(timer_id) if timer_id < 2**63 else None
    if found is None:
        raise Http404(f"the store has no message {timer_id}; the history may have removed it")
    return found


@admin.register(models.History)
class HistoryAdmin(PageAdmin):
    template = "django_wheel/history.html"
    values = staticmethod(lists.history)


@admin.register(models.Rejected)
class RejectedAdmin(PageAdmin):
    template = "django_wheel/rejected.html"
    values = staticmethod(lists.rejected)


@admin.register(models.Batch)
class BatchAdmin(PageAdmin):
    template = "django_wheel/batches.html"
    values = staticmethod(lists.batches)


@admin.register(models.Shard)
class ShardAdmin(PageAdmin):
    template = "django_wheel/shards.html"
    values = staticmethod(lists.shards)


class ResultsAdmin(PageAdmin):
    """A page of the results of a job of the pipeline; in the menu while there are results."""

    failure = _("The results cannot be shown: %(error)s.")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return super().has_module_permission(request) and results.has_results(str(self.opts.model_name))


@admin.register(models.Lateness)
class LatenessAdmin(ResultsAdmin):
    template = "django_wheel/lateness.html"
    values = staticmethod(lateness)


@admin.register(models.Forecast)
class ForecastAdmin(ResultsAdmin):
    template = "django_wheel/forecast.html"
    values = staticmethod(forecast)
