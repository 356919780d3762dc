"""``WheelBackend``, where Django has tasks of its own (Django 6). Celery imports this module with any Django."""

from __future__ import annotations

import django

if django.VERSION >= (6,):
    from django_wheel.task_backend import WheelBackend as WheelBackend
