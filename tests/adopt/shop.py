"""A small project with the packages of ``test_packages``: one module with its settings, its app and its tasks."""

import os
from pathlib import Path
from typing import Any

import django
import structlog
from celery import shared_task
from celery_once import QueueOnce
from django.conf import settings
from django_structlog.celery.steps import DjangoStructLogInitStep

from celery_wheel import Celery

FOLDER, BROKER = Path(os.environ["SHOP_FOLDER"]), os.environ["SHOP_BROKER"]

settings.configure(
    SECRET_KEY="not secret",  # noqa: S106
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": FOLDER / "shop.sqlite3"}},
    INSTALLED_APPS=["django.contrib.contenttypes", "django_celery_results", "django_structlog"],
    DJANGO_STRUCTLOG_CELERY_ENABLED=True,
    USE_TZ=True,
)
django.setup()

app = Celery("shop")
app.conf.update(
    broker_url=BROKER,
    result_backend="django-db",
    result_extended=True,
    beat_scheduler="wheel",
    wheel_store=f"sqlite:///{FOLDER}/wheel.sqlite3",
    worker_send_task_events=True,
    task_send_sent_event=True,
    ONCE={"backend": "celery_once.backends.Redis", "settings": {"url": BROKER, "default_timeout": 600}},
)
app.steps["worker"].add(DjangoStructLogInitStep)  # as its manual has it
app.set_default()


@shared_task
def add(left: int, right: int) -> int:
    return left + right


@shared_task
def context() -> dict[str, Any]:
    return {name: str(value) for name, value in structlog.contextvars.get_contextvars().items()}


@shared_task(base=QueueOnce, bind=True, max_retries=1)
def sync(self: Any, shop: int) -> int:
    if not self.request.retries:
        raise self.retry(countdown=1)
    return shop
