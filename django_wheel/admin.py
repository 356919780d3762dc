"""The wheel in the Django admin: pages that read the store or results, and two that ask the holders for something.

::

    page        address                              who
    Wheel       …/django_wheel/wheel/  and  live/    view_wheel or operate_wheel
    Pending     …/pending/  and  <id>/  <id>/body/   the same
    History     …/history/                           the same
    Rejected    …/rejected/                          the same
    Batches     …/batch/                             the same
    Shards      …/shard/                             the same
    Lateness    …/lateness/                          the same; offered where there are results
    Forecast    …/forecast/                          the same

    acting      …/pending/act/    POST               operate_wheel
                …/wheel/gate/     GET, POST          operate_wheel

These are all addresses there are: Django's own forms to add, change and delete are not reachable, since a row that
anybody but the holder changes is a task that is lost or runs twice. What people do goes to the holder as a request.
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

from celery_wheel.control import Wheel
from celery_wheel.errors import WheelError
from celery_wheel.store.ports.pages import Detail
from django_wheel import models
from django_wheel.permissions import may_operate, may_view
from django_wheel.project import project_wheel
from django_wheel.views import acting, gates, lists, results
from django_wheel.views.forecast import forecast
from django_wheel.views.lateness import lateness
from django_wheel.views.live import live
from django_wheel.views.request import Asked, asked

Show = Callable[[Wheel, Asked], dict[str, Any]]

READING = ("GET", "HEAD")


if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


class PageAdmin(ModelAdmin):
    """A page of the wheel in the place of a model's list."""

    template: ClassVar[str]
    show: Show  #: what the template needs
    what: ClassVar[str] = "The wheel"  #: cannot be shown

    # -- who may -------------------------------------------------------------------------------------

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

    # -- where ---------------------------------------------------------------------------------------

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
        """Only for staff who may, and only by these methods; where nothing is said: who may view, and only to read."""

        def guard(request: HttpRequest, **arguments: Any) -> HttpResponse:
            if not may(request):
                raise PermissionDenied
            if request.method not in methods:
                return HttpResponseNotAllowed(methods)
            return view(request, **arguments)

        return self.admin_site.admin_view(guard)

    def acting(self, view: Callable[..., HttpResponse], methods: Collection[str]) -> Callable[..., HttpResponseBase]:
        """As ``guarded``, for those who may operate. Under ATOMIC_REQUESTS it is in no transaction.

        While such a transaction is open the holder could not answer, where the store is in the same SQLite file.
        """
        guarded = self.guarded(view, may_operate, methods)
        for alias in connections:
            guarded = transaction.non_atomic_requests(using=alias)(guarded)
        return guarded

    # -- what ----------------------------------------------------------------------------------------

    def page(self, request: HttpRequest) -> HttpResponse:
        return self.answer(request, self.template, self.show)

    def answer(self, request: HttpRequest, template: str, show: Show, **more: Any) -> HttpResponse:
        """The page; where the store cannot be read, a page that says why, and status 503."""
        wanted = asked(request)
        context = {**self.admin_site.each_context(request), "opts": self.opts, "asked": wanted, **more}
        context |= {"may_operate": may_operate(request), "here": request.path + wanted.here}
        context.setdefault("title", str(self.opts.verbose_name_plural).capitalize())
        try:
            shown = show(project_wheel(), wanted)
        except (WheelError, ImproperlyConfigured) as error:
            context |= {"error": str(error), "what": self.what}
            return TemplateResponse(request, "django_wheel/unusable.html", context, status=503)
        page = shown.get("page")
        context["next_link"] = wanted.next_link(page.next) if page is not None else None
        return TemplateResponse(request, template, {**context, **shown})


@admin.register(models.Wheel)
class WheelAdmin(PageAdmin):
    template = "django_wheel/wheel.html"
    show = staticmethod(live)

    def more_urls(self, name: str) -> list[URLPattern]:
        return [
            path("live/", self.guarded(self.live), name=f"{name}_live"),
            path("gate/", self.acting(self.gate, (*READING, "POST")), name=f"{name}_gate"),
        ]

    def page(self, request: HttpRequest) -> HttpResponse:
        return self.answer(request, self.template, self.show, there={job: results.there(job) for job in results.JOBS})

    def live(self, request: HttpRequest) -> HttpResponse:
        return self.answer(request, "django_wheel/live.html", self.show)

    def gate(self, request: HttpRequest) -> HttpResponse:
        """What to pause or to resume is asked for; or it is done."""
        turn = gates.turn_of(request)
        form = gates.form_of(request, turn)
        if request.method == "POST" and form.is_valid():
            gates.carry_out(request, turn, form)
            return HttpResponseRedirect(
                reverse("admin:django_wheel_wheel_changelist", current_app=self.admin_site.name)
            )
        return self.answer(request, "django_wheel/gate.html", gates.shown, title=turn.label, turn=turn, form=form)


@admin.register(models.Pending)
class PendingAdmin(PageAdmin):
    template = "django_wheel/pending.html"
    show = staticmethod(lists.pending)

    def more_urls(self, name: str) -> list[URLPattern]:
        return [
            path("act/", self.acting(self.act, ("POST",)), name=f"{name}_act"),
            path("<int:timer_id>/", self.guarded(self.one), name=f"{name}_one"),
            path("<int:timer_id>/body/", self.guarded(self.body), name=f"{name}_body"),
        ]

    def act(self, request: HttpRequest) -> HttpResponse:
        """What is to be done to the selected tasks is asked once more; or it is done."""

        def render(title: str, values: dict[str, Any]) -> HttpResponse:
            return self.answer(request, "django_wheel/act.html", lambda wheel, asked: values, title=title)

        return acting.act(request, render)

    def one(self, request: HttpRequest, timer_id: int) -> HttpResponse:
        def show(wheel: Wheel, asked: Asked) -> dict[str, Any]:
            return lists.one_task(_detail(wheel, timer_id))

        return self.answer(request, "django_wheel/task.html", show, title=f"Task {timer_id}")

    def body(self, request: HttpRequest, timer_id: int) -> HttpResponse:
        """The body's bytes, to be kept and not to be shown by a browser."""
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
        raise Http404(f"the store knows no message {timer_id}; the history may have forgotten it")
    return found


@admin.register(models.History)
class HistoryAdmin(PageAdmin):
    template = "django_wheel/history.html"
    show = staticmethod(lists.history)


@admin.register(models.Rejected)
class RejectedAdmin(PageAdmin):
    template = "django_wheel/rejected.html"
    show = staticmethod(lists.rejected)


@admin.register(models.Batch)
class BatchAdmin(PageAdmin):
    template = "django_wheel/batches.html"
    show = staticmethod(lists.batches)


@admin.register(models.Shard)
class ShardAdmin(PageAdmin):
    template = "django_wheel/shards.html"
    show = staticmethod(lists.shards)


class ResultsAdmin(PageAdmin):
    """A page of what a job of the pipeline left; in the menu while there is something to show."""

    what = "The results"

    def has_module_permission(self, request: HttpRequest) -> bool:
        return super().has_module_permission(request) and results.there(str(self.opts.model_name))


@admin.register(models.Lateness)
class LatenessAdmin(ResultsAdmin):
    template = "django_wheel/lateness.html"
    show = staticmethod(lateness)


@admin.register(models.Forecast)
class ForecastAdmin(ResultsAdmin):
    template = "django_wheel/forecast.html"
    show = staticmethod(forecast)
