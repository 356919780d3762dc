"""The Celery app. The import is one of the two lines that differ from a project without the wheel."""

import os

from celery_wheel import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("flights")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
