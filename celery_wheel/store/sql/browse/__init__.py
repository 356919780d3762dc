"""The store for people: pages of tasks, one task, counts. For the CLI, the admin and ``app.wheel``.

Each method sees the commits of running schedulers, waits for no lock, and raises StoreError where the store cannot be
read. A page, or a message with its outcomes, shows one moment. No method reads more than about twenty thousand
messages, however many are pending, and the number of its statements does not grow with the shards; the paced search for
herds alone reads the index of up to 200,000 messages an hour.
"""

from __future__ import annotations

from celery_wheel.store.sql.browse.audit import AuditLog
from celery_wheel.store.sql.browse.groups import GroupViews
from celery_wheel.store.sql.browse.herds import HerdCounts
from celery_wheel.store.sql.browse.overview import StoreCounts
from celery_wheel.store.sql.browse.pages import Pages
from celery_wheel.store.sql.browse.schedules import ScheduleViews


class Browse(Pages, StoreCounts, HerdCounts, ScheduleViews, GroupViews, AuditLog): ...
