"""The wheel in the Django admin: pages that read the store, and no form of Django's that could write to it.

::

    page        address                              who
    Wheel       …/django_wheel/wheel/  and  live/    view_wheel or operate_wheel
    Pending     …/pending/  and  <id>/  <id>/body/   the same
    History     …/history/                           the same
    Rejected    …/rejected/                          the same
    Batches     …/batch/                             the same
    Shards      …/shard/                             the same

These are all addresses there are: Django's own forms to add, change and delete are not reachable, since a row that
anybody but the holder changes is a task that is lost or runs twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from celery_wheel.control import Wheel
from celery_wheel.errors import WheelError
from celery_wheel.store import browse
from django_wheel import models
from django_wheel.project import project_wheel
from django_wheel.views import lists
from django_wheel.views.live import live
from django_wheel.views.request import Asked, asked

VIEW, OPERATE = "django_wheel.view_wheel", "django_wheel.operate_wheel"

Show = Callable[[Wheel, Asked], dict[str, Any]]


def may_view(request: HttpRequest) -> bool:
    user: Any = request.user
    return bool(user.has_perm(VIEW) or user.has_perm(OPERATE))


if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


class PageAdmin(ModelAdmin):
    """A page of the wheel in the place of a model's list."""

    template: ClassVar[str]
    show: Show  #: what the template needs

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

    def guarded(self, view: Callable[..., HttpResponse]) -> Callable[..., HttpResponseBase]:
        """Only for staff who may view, and only to read."""

        def guard(request: HttpRequest, **arguments: Any) -> HttpResponse:
            if not may_view(request):
                raise PermissionDenied
            if request.method not in ("GET", "HEAD"):
                return HttpResponseNotAllowed(["GET", "HEAD"])
            return view(request, **arguments)

        return self.admin_site.admin_view(guard)

    # -- what ----------------------------------------------------------------------------------------

    def page(self, request: HttpRequest) -> HttpResponse:
        return self.answer(request, self.template, self.show)

    def answer(self, request: HttpRequest, template: str, show: Show, **more: Any) -> HttpResponse:
        """The page; where the store cannot be read, a page that says why, and status 503."""
        wanted = asked(request)
        context = {**self.admin_site.each_context(request), "opts": self.opts, "asked": wanted, **more}
        context.setdefault("title", str(self.opts.verbose_name_plural).capitalize())
        try:
            shown = show(project_wheel(), wanted)
        except (WheelError, ImproperlyConfigured) as error:
            context["error"] = str(error)
            return TemplateResponse(request, "django_wheel/unusable.html", context, status=503)
        page = shown.get("page")
        context["next_link"] = wanted.next_link(page.next) if page is not None else None
        return TemplateResponse(request, template, {**context, **shown})


@admin.register(models.Wheel)
class WheelAdmin(PageAdmin):
    template = "django_wheel/wheel.html"
    show = staticmethod(live)

    def more_urls(self, name: str) -> list[URLPattern]:
        return [path("live/", self.guarded(self.live), name=f"{name}_live")]

    def live(self, request: HttpRequest) -> HttpResponse:
        return self.answer(request, "django_wheel/live.html", self.show)


@admin.register(models.Pending)
class PendingAdmin(PageAdmin):
    template = "django_wheel/pending.html"
    show = staticmethod(lists.pending)

    def more_urls(self, name: str) -> list[URLPattern]:
        return [
            path("<int:timer_id>/", self.guarded(self.one), name=f"{name}_one"),
            path("<int:timer_id>/body/", self.guarded(self.body), name=f"{name}_body"),
        ]

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


def _detail(wheel: Wheel, timer_id: int) -> browse.Detail:
    found = browse.detail(wheel.store, timer_id) if timer_id < 2**63 else None
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
