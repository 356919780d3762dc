"""A page of the wheel in the admin: its permissions, its addresses, and the answer to a request.

::

    view_wheel          lists, counts and charts; a task without its arguments, headers and body
    view_payload        also arguments, headers and bodies: without it they are not read from the store
    operate_wheel       also cancel, run now, reschedule, requeue, pause and resume
    manage_schedules    also create, change, pause, run, backfill and delete recurring schedules
    erase_data          also erase all data of a task, a key, a group or a deleted schedule
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.functional import Promise
from django.utils.text import Truncator, capfirst
from django.utils.translation import gettext_lazy as _

from celery_wheel.control import Wheel, now_ms
from celery_wheel.errors import WheelError
from django_wheel.project import masked_text, project_wheel
from django_wheel.views.query import PageQuery

VIEW, VIEW_PAYLOAD = "django_wheel.view_wheel", "django_wheel.view_payload"
OPERATE, MANAGE_SCHEDULES = "django_wheel.operate_wheel", "django_wheel.manage_schedules"
ERASE = "django_wheel.erase_data"


def _holds(*permissions: str) -> Callable[[HttpRequest], bool]:
    def may(request: HttpRequest) -> bool:
        user: Any = request.user
        return any(user.has_perm(one) for one in permissions)

    return may


may_view = _holds(VIEW, OPERATE, MANAGE_SCHEDULES, ERASE, VIEW_PAYLOAD)
may_view_payload = _holds(VIEW_PAYLOAD)
may_operate = _holds(OPERATE)
may_manage_schedules = _holds(MANAGE_SCHEDULES)
may_erase = _holds(ERASE)

#: Returns the values of a template, beside those of ``PageAdmin.context``.
Values = Callable[[Wheel, PageQuery], dict[str, Any]]

READING = ("GET", "HEAD")
#: Longest text of an error on a page or in a message, in characters.
ERROR_CUT = 2_000


if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


class PageAdmin(ModelAdmin):
    template: ClassVar[str]
    values: Values
    #: Whether a user may use the actions of the page.
    may_act: Callable[[HttpRequest], bool] = staticmethod(may_operate)
    failure: ClassVar[Promise] = _("The wheel cannot be shown: %(error)s.")

    # -- permissions -------------------------------------------------------------------------------------

    def has_module_permission(self, request: HttpRequest) -> bool:
        return may_view(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may_view(request)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_change_permission = has_delete_permission = has_add_permission

    # -- addresses ---------------------------------------------------------------------------------------

    def get_urls(self) -> list[URLPattern]:
        name = f"django_wheel_{self.opts.model_name}"
        return [path("", self.guarded(self.page), name=f"{name}_changelist"), *self.more_urls(name)]

    def more_urls(self, name: str) -> list[URLPattern]:
        return []

    def guarded(
        self,
        view: Callable[..., HttpResponseBase],
        may: Callable[[HttpRequest], bool] = may_view,
        methods: Collection[str] = READING,
    ) -> Callable[..., HttpResponseBase]:
        """Return the view for staff with the permission ``may`` and these methods; by default for viewers, to read."""

        def guard(request: HttpRequest, **arguments: Any) -> HttpResponseBase:
            if not may(request):
                raise PermissionDenied
            if request.method not in methods:
                return HttpResponseNotAllowed(methods)
            return view(request, **arguments)

        return self.admin_site.admin_view(guard)

    def for_operators(
        self,
        view: Callable[..., HttpResponse],
        methods: Collection[str],
        may: Callable[[HttpRequest], bool] | None = None,
    ) -> Callable[..., HttpResponseBase]:
        """Return the view for users who may act, or ``may``, outside of the transactions of ATOMIC_REQUESTS.

        During such a transaction the holder could not answer, if the store is in the same SQLite file.
        """
        guarded = self.guarded(view, may or self.may_act, methods)
        for alias in connections:
            guarded = transaction.non_atomic_requests(using=alias)(guarded)
        return guarded

    # -- pages ----------------------------------------------------------------------------------------

    def page(self, request: HttpRequest) -> HttpResponse:
        return self.answer(request, self.template, self.values)

    def context(self, request: HttpRequest, **more: Any) -> dict[str, Any]:
        query = PageQuery(request.GET)
        context = {**self.admin_site.each_context(request), "opts": self.opts, "query": query, "now_ms": now_ms()}
        context |= more
        context |= {"may_operate": self.may_act(request), "may_view_payload": may_view_payload(request)}
        context["may_erase"] = may_erase(request)
        context["here"] = request.path + query.here
        context.setdefault("title", capfirst(self.opts.verbose_name_plural))
        return context

    def show(self, request: HttpRequest, template: str, title: str, values: dict[str, Any]) -> TemplateResponse:
        return self.answer(request, template, lambda wheel, query: values, title=title)

    def answer(self, request: HttpRequest, template: str, values: Values, **more: Any) -> TemplateResponse:
        """Return the page; if the store cannot be read, a page with the error and status 503."""
        context = self.context(request, **more)
        query: PageQuery = context["query"]
        try:
            shown = values(project_wheel(), query)
        except (WheelError, ImproperlyConfigured) as error:
            context["error"] = self.failure % {"error": Truncator(masked_text(str(error))).chars(ERROR_CUT)}
            return TemplateResponse(request, "django_wheel/error.html", context, status=503)
        page = shown.get("page")
        context["next_link"] = query.next_link(page.next) if page is not None else None
        return TemplateResponse(request, template, {**context, **shown})
