"""``app.wheel.schedules``: recurring schedules, changed by the holders of their shards.

A request for schedules is answered, withdrawn, or part of a transaction, as every other request of ``app.wheel``.
"""

from celery_wheel.requests.schedules.schedules import Schedules

__all__ = ["Schedules"]
