"""The wheel in the Django admin: pages that read the store or results, and two that send requests to the holders.

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

    requests    …/pending/act/    POST               operate_wheel
                …/wheel/gate/     GET, POST          operate_wheel

There are no other addresses. Django's own forms to add, change and delete are not reachable: a task
whose row is changed by any process but the holder may be lost or run twice. So an action is a request to the holder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.db import connections, transaction
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.functional import Promise
from django.utils.text import Truncator, capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from celery_wheel.control import Wheel
from celery_wheel.errors import WheelError
from celery_wheel.store.ports.pages import Detail
from django_wheel import models
from django_wheel.permissions import may_operate, may_view
from django_wheel.project import project_wheel
from django_wheel.views import gates, lists, results, task_requests
from django_wheel.views.forecast import forecast
from django_wheel.views.lateness import lateness
from django_wheel.views.query import PageQuery, page_query
from django_wheel.views.wheel import wheel_values

#: Returns the values of a template.
Values = Callable[[Wheel, PageQuery], dict[str, Any]]

READING = ("GET", "HEAD")
#: Longest text of an error on a page, in characters.
ERROR_CUT = 2_000


if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


class PageAdmin(ModelAdmin):
    """A page of the wheel in the place of a model's list."""

    template: ClassVar[str]
    values: Values
    failure: ClassVar[Promise] = _("The wheel cannot be shown: %(error)s.")

    # -- permissions -------------------------------------------------------------------------------------

    def has_module_permission(self, request: HttpRequest) -> bool:
        return may_view(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may_view(request)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    # -- addresses ---------------------------------------------------------------------------------------

    def get_urls(self) -> list[URLPattern]:
        name = f"django_wheel_{self.opts.model_name}"
        return [path("", self.guarded(self.page), name=f"{name}_changelist"), *self.more_urls(name)]

    def more_urls(self, name: str) -> list[URLPattern]:
        return []

    def guarded(
        self,
        view: Callable[..., HttpResponse],
        may: Callable[[HttpRequest], bool] = may_view,
        methods: Collection[str] = READING,
    ) -> Callable[..., HttpResponseBase]:
        """Return the view for staff with the permission ``may`` and these methods; by default for viewers, to read."""

        def guard(request: HttpRequest, **arguments: Any) -> HttpResponse:
            if not may(request):
                raise PermissionDenied
            if request.method not in methods:
                return HttpResponseNotAllowed(methods)
            return view(request, **arguments)

        return self.admin_site.admin_view(guard)

    def for_operators(
        self, view: Callable[..., HttpResponse], methods: Collection[str]
    ) -> Callable[..., HttpResponseBase]:
        """Return the view for users who may operate, outside of the transactions of ATOMIC_REQUESTS.

        During such a transaction the holder could not answer, if the store is in the same SQLite file.
        """
        guarded = self.guarded(view, may_operate, methods)
        for alias in connections:
            guarded = transaction.non_atomic_requests(using=alias)(guarded)
        return guarded

    # -- pages ----------------------------------------------------------------------------------------

    def page(self, request: HttpRequest) -> HttpResponse:
        return self.answer(request, self.template, self.values)

    def answer(self, request: HttpRequest, template: str, values: Values, **more: Any) -> HttpResponse:
        """Return the page; if the store cannot be read, a page with the error and status 503."""
        query = page_query(request)
        context = {**self.admin_site.each_context(request), "opts": self.opts, "query": query, **more}
        context |= {"may_operate": may_operate(request), "here": request.path + query.here}
        context.setdefault("title", capfirst(self.opts.verbose_name_plural))
        try:
            shown = values(project_wheel(), query)
        except (WheelError, ImproperlyConfigured) as error:
            context["error"] = self.failure % {"error": Truncator(str(error)).chars(ERROR_CUT)}
            return TemplateResponse(request, "django_wheel/error.html", context, status=503)
        page = shown.get("page")
        context["next_link"] = query.next_link(page.next) if page is not None else None
        return TemplateResponse(request, template, {**context, **shown})


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
