import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.kit.site.settings")

app = Celery("site")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["tests.kit.site"])
