"""A Django project as its users have it: a plain Celery app, and the two lines."""

from tests.kit.site.celery import app as celery_app

__all__ = ["celery_app"]
