"""The example project: settings, Celery app and addresses.

Importing the app here makes ``@shared_task`` find it in every process that Django starts.
"""

from config.celery import app as celery_app

__all__ = ["celery_app"]
