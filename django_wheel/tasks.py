"""``WheelBackend``, where Django has tasks of its own (Django 6). Celery imports this module with any Django.

A file of its own: Celery finds the tasks of an app by its name.
"""

from __future__ import annotations

import django

if django.VERSION >= (6,):
    from django_wheel.task_backend import WheelBackend as WheelBackend
