"""Import the schedules of other systems: read the stored schedules of a system, and create the same here.

The other system is only read. Both would run the tasks until it is stopped: stop its scheduler first. A schedule begins
here with its next instant after the import; a paused one is imported paused. Runs and histories stay where they are.
"""

from celery_wheel.operations.schedule_import import apscheduler, crontab, django_celery_beat, redbeat, rq_scheduler
from celery_wheel.operations.schedule_import.foreign import ForeignSchedule, ImportOptions, existing, store_schedules

READERS = {
    "redbeat": redbeat.read,
    "django-celery-beat": django_celery_beat.read,
    "crontab": crontab.read,
    "rq-scheduler": rq_scheduler.read,
    "apscheduler": apscheduler.read,
}

__all__ = ["READERS", "ForeignSchedule", "ImportOptions", "existing", "store_schedules"]
