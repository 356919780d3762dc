"""The Celery app, as in any project; ``django_wheel`` in the settings makes its delayed tasks wait in the wheel."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("flights")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
