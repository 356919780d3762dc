"""Erasing a task, the tasks with a key, a group or a deleted schedule: a form that asks for confirmation; the receipt.

The receipt is on the page that answers, and nowhere else: the admin's log and the audit log have its digest.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from celery_wheel.control import Wheel
from celery_wheel.requests.erasure import ErasureReceipt
from django_wheel.forms import EraseForm
from django_wheel.project import project_wheel
from django_wheel.views.page import PageAdmin
from django_wheel.views.query import PageQuery
from django_wheel.views.requests import attempt_form, log, request_options


def erase_page(page: PageAdmin, request: HttpRequest) -> HttpResponse:
    """Show the form, with the values of a link; or, when the user has sent it, erase and show the receipt."""
    is_sent, receipt = request.method == "POST", None
    form = EraseForm(request.POST) if is_sent else EraseForm(initial=request.GET.dict())
    if is_sent and form.is_valid():
        receipt = attempt_form(form, partial(_erased, request, form))

    def values(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
        return {"form": form, "receipt": receipt}

    return page.answer(request, "django_wheel/erase.html", values, title=_("Erase"))


def _erased(request: HttpRequest, form: EraseForm) -> ErasureReceipt:
    scope, reason = form.cleaned_data["scope"], form.cleaned_data["reason"]
    # A page waits seconds, and the holders go on without it.
    receipt = project_wheel().erase(
        **{scope: form.cleaned_data["name"]}, patient=False, **request_options(request, reason)
    )
    title = _("Erased: %(scope)s %(digest)s") % {"scope": scope, "digest": receipt.digest}
    log(request, "wheel", title, reason)
    return receipt
