"""The four permissions. Each of the others includes the first.

::

    view_wheel          lists, counts and charts; a task without its arguments, headers and body
    view_payload        also arguments, headers and bodies: without it they are not read from the store
    operate_wheel       also cancel, run now, reschedule, requeue, pause and resume
    manage_schedules    also create, change, pause, run, backfill and delete recurring schedules
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

VIEW, VIEW_PAYLOAD = "django_wheel.view_wheel", "django_wheel.view_payload"
OPERATE, MANAGE_SCHEDULES = "django_wheel.operate_wheel", "django_wheel.manage_schedules"


def may_view(request: HttpRequest) -> bool:
    return any(_may(request, one) for one in (VIEW, OPERATE, MANAGE_SCHEDULES, VIEW_PAYLOAD))


def may_view_payload(request: HttpRequest) -> bool:
    return _may(request, VIEW_PAYLOAD)


def may_operate(request: HttpRequest) -> bool:
    return _may(request, OPERATE)


def may_manage_schedules(request: HttpRequest) -> bool:
    return _may(request, MANAGE_SCHEDULES)


def _may(request: HttpRequest, permission: str) -> bool:
    user: Any = request.user
    return bool(user.has_perm(permission))
