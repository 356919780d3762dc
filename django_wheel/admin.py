"""The wheel in the Django admin: pages that read the store or results, and pages that send requests to the holders.

::

    page        address                              permission
    Wheel       …/django_wheel/wheel/  and  live/    any of the four
    Pending     …/pending/  and  <id>/               the same
                …/pending/<id>/body/                 view_payload
    History     …/history/                           the same
    Rejected    …/rejected/                          the same
    Batches     …/batch/                             the same
    Shards      …/shard/                             the same
    Lateness    …/lateness/                          the same; in the menu if there are results
    Forecast    …/forecast/                          the same
    Audit log   …/audit/  and  export/csv/  jsonl/   the same
    Schedules   …/schedule/ …                        the same; see ``schedule_admin``

    requests    …/pending/act/    POST               operate_wheel
                …/pending/bulk/   GET, POST          operate_wheel
                …/wheel/gate/     GET, POST          operate_wheel

There are no other addresses. Django's own forms to add, change and delete are not reachable: a task
whose row is changed by any process but the holder may be lost or run twice. So an action is a request to the holder.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from django.contrib import admin
from django.core.exceptions import ImproperlyConfigured
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.translation import get_language, gettext
from django.utils.translation import gettext_lazy as _

from celery_wheel.control import Wheel
from celery_wheel.errors import WheelError
from celery_wheel.store.ports.pages import ALL_BYTES, Detail
from django_wheel import models
from django_wheel.page_admin import READING, PageAdmin
from django_wheel.permissions import may_operate, may_view_payload
from django_wheel.project import project_wheel
from django_wheel.schedule_admin import ScheduleAdmin
from django_wheel.views import audit, bulk, gates, lists, results, task_requests
from django_wheel.views.actions import ACTIONS
from django_wheel.views.forecast import forecast
from django_wheel.views.lateness import lateness
from django_wheel.views.payload import sight_of
from django_wheel.views.query import PageQuery, page_query
from django_wheel.views.wheel import LiveParts, Viewpoint, shard_of, unlike

admin.site.register(models.Schedule, ScheduleAdmin)


@admin.register(models.Wheel)
class WheelAdmin(PageAdmin):
    template = "django_wheel/wheel.html"
    live_parts = LiveParts()

    def more_urls(self, name: str) -> list[URLPattern]:
        return [
            path("live/", self.guarded(self.live), name=f"{name}_live"),
            path("gate/", self.for_operators(self.gate, (*READING, "POST")), name=f"{name}_gate"),
        ]

    def page(self, request: HttpRequest) -> HttpResponse:
        jobs = {job: results.has_results(job) for job in results.JOBS}
        return self.answer(request, self.template, partial(self.parts, request), jobs=jobs)

    def live(self, request: HttpRequest) -> HttpResponse:
        try:
            parts = self.parts(request, project_wheel(), page_query(request))["parts"]
        except (WheelError, ImproperlyConfigured):
            return self.page(request)  # it reads the same error, and shows it
        return HttpResponse(unlike(parts.values(), request.GET.get("have", "")))

    def parts(self, request: HttpRequest, wheel: Wheel, query: PageQuery) -> dict[str, Any]:
        overview, tables = wheel.overview(), query.text("tables") == "1"
        view = Viewpoint(
            store=wheel.store.uuid,
            site=self.admin_site.name,
            shard=shard_of(overview, query),
            may_operate=may_operate(request),
            tables=tables,
            language=get_language(),
            zone=timezone.get_current_timezone_name(),
        )
        link = query.link(tables=None if tables else 1)
        return {"parts": self.live_parts.get(wheel, overview, view), "tables": tables, "tables_link": link}

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
            path("bulk/", self.for_operators(self.bulk, (*READING, "POST")), name=f"{name}_bulk"),
            path("<int:timer_id>/", self.guarded(self.one), name=f"{name}_one"),
            path("<int:timer_id>/body/", self.guarded(self.body, may_view_payload), name=f"{name}_body"),
        ]

    def act(self, request: HttpRequest) -> HttpResponse:
        """Ask for confirmation of an action on the selected tasks; or carry it out."""

        def render(title: str, values: dict[str, Any]) -> HttpResponse:
            template = "django_wheel/confirm.html" if "tasks" in values else "django_wheel/bulk_confirm.html"
            return self.answer(request, template, lambda wheel, query: values, title=title)

        action = ACTIONS.get(request.POST.get("verb", ""))
        if action is None:
            return HttpResponseBadRequest(f"verb must be one of {', '.join(ACTIONS)}", content_type="text/plain")
        handle = bulk.handle if "all" in request.POST else task_requests.handle
        return handle(request, action, render)

    def bulk(self, request: HttpRequest) -> HttpResponse:
        """Show the action on all matching tasks, or carry out its next step."""

        def render(values: dict[str, Any]) -> HttpResponse:
            context = self.context(request, title=gettext("All matching tasks"))
            return TemplateResponse(request, "django_wheel/bulk.html", {**context, **values})

        return bulk.page(request, render)

    def one(self, request: HttpRequest, timer_id: int) -> HttpResponse:
        def values(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
            sight = sight_of(request)
            detail = _detail(wheel, timer_id, sight.most_bytes)
            return {**lists.task_values(detail), **sight.message_values(detail)}

        title = gettext("Task %(number)s") % {"number": timer_id}
        return self.answer(request, "django_wheel/task.html", values, title=title)

    def body(self, request: HttpRequest, timer_id: int) -> HttpResponse:
        """Return the bytes of the body, for a browser to save and not to show."""
        try:
            wheel = project_wheel()
            body = wheel.mask.part(_detail(wheel, timer_id, ALL_BYTES).body)
        except (WheelError, ImproperlyConfigured) as error:
            return HttpResponse(str(error), status=503, content_type="text/plain; charset=utf-8")
        response = HttpResponse(body, content_type="application/octet-stream")
        response["Content-Disposition"] = f'attachment; filename="{timer_id}.bin"'
        response["X-Content-Type-Options"] = "nosniff"
        return response


def _detail(wheel: Wheel, timer_id: int, most_bytes: int) -> Detail:
    found = wheel.store.browse.detail(timer_id, most_bytes) if timer_id < 2**63 else None
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


@admin.register(models.Audit)
class AuditAdmin(PageAdmin):
    template = "django_wheel/audit.html"
    values = staticmethod(audit.audit)

    def more_urls(self, name: str) -> list[URLPattern]:
        exports = {form: self.guarded(partial(audit.export, form=form)) for form in audit.FORMATS}
        return [path(f"export/{form}/", view, name=f"{name}_{form}") for form, view in exports.items()]


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
