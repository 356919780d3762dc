"""The two permissions: to view the wheel, and to operate it. A user who may operate may also view."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

VIEW, OPERATE = "django_wheel.view_wheel", "django_wheel.operate_wheel"


def may_view(request: HttpRequest) -> bool:
    user: Any = request.user
    return bool(user.has_perm(VIEW) or user.has_perm(OPERATE))


def may_operate(request: HttpRequest) -> bool:
    user: Any = request.user
    return bool(user.has_perm(OPERATE))
