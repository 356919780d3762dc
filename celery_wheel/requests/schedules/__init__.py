"""``app.wheel.schedules``: recurring schedules, changed by the holders of their names' shards.

::

    schedules.create("report", Crontab("0", "9"), "app.report", zone="Europe/Paris")
        │ definitions   arguments ─► JSON, checked here already
        ▼ request       {"do": "create", "definitions": {"report": …}} ─► the inbox of the shard of "report"
    ScheduleAnswer      done | already | unknown | refused, and the occurrences that had left already

A request for schedules is withdrawn, answered and part of a transaction as every other request of ``app.wheel``.
"""

from celery_wheel.requests.schedules.schedules import Schedules

__all__ = ["Schedules"]
