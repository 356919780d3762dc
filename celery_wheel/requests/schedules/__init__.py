"""``app.wheel.schedules``: recurring schedules, changed by the holders of their names' shards.

::

    schedules.create("report", Crontab("0", "9"), "app.report", zone="Europe/Paris")
        │ definitions   arguments ─► JSON, which is checked first
        ▼ request       {"do": "create", "definitions": {"report": …}} ─► the inbox of the shard of "report"
    ScheduleAnswer      done | already | unknown | refused, and the occurrences that were dispatched before

A request for schedules is answered, withdrawn, or part of a transaction, as every other request of ``app.wheel``.
"""

from celery_wheel.requests.schedules.schedules import Schedules

__all__ = ["Schedules"]
