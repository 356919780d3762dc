"""Import the schedules of other systems: read the stored schedules of a system, and create the same here.

::

    ImportOptions ─► READERS[system] ─► ForeignSchedule: a definition, or the reason of none ─► store_schedules

    redbeat               Redis: the hashes redbeat:*, JSON
    django_celery_beat    its tables, through Django
    crontab               a file of cron's; every command line is the argument of a task that the user names
    rq_scheduler          Redis: rq:scheduler:scheduled_jobs and the hashes of its jobs
    apscheduler           3.x, its job stores in SQL or Redis: pickles, which are opened with ``trusted`` only

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
