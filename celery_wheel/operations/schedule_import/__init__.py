"""Import the schedules of other systems: read what a system stores, and create the same here.

::

    ImportOptions ─► READERS[system] ─► ForeignSchedule: a definition, or the reason of none ─► store_schedules

    redbeat               Redis: the hashes redbeat:*, JSON
    django_celery_beat    its tables, through Django
    crontab               a file of cron's; every command line is the argument of a task that the user names
    rq_scheduler          Redis: rq:scheduler:scheduled_jobs and the hashes of its jobs
    apscheduler           3.x, its job stores in SQL or Redis: pickles, which are opened with ``trusted`` only

    options     where a system's schedules are, and connections to it
    foreign     a schedule that was read, and its definition
    cron        fields of crontabs as numbers, by the rules of the systems
    pickles     values of pickles that name no class
    store       the schedules that exist already, and the request that creates the others

The other system is only read. Both would run the tasks until it is stopped: stop its scheduler first. A schedule begins
here with its next instant after the import; a paused one is imported paused. Runs and histories stay where they are.
"""

from celery_wheel.operations.schedule_import import apscheduler, crontab, django_celery_beat, redbeat, rq_scheduler
from celery_wheel.operations.schedule_import.foreign import ForeignSchedule
from celery_wheel.operations.schedule_import.options import ImportOptions
from celery_wheel.operations.schedule_import.store import existing, store_schedules

READERS = {
    "redbeat": redbeat.read,
    "django-celery-beat": django_celery_beat.read,
    "crontab": crontab.read,
    "rq-scheduler": rq_scheduler.read,
    "apscheduler": apscheduler.read,
}

__all__ = ["READERS", "ForeignSchedule", "ImportOptions", "existing", "store_schedules"]
