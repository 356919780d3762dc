"""The ports of a store: the methods that the other rooms call, and the values that they return. Standard library only.

::

    store         Store        for the engine            FullStore   all ports: ``open_store`` returns one
    pages, schedules           the values for people, which ``store.sql.browse`` returns
    bulk_loads    BulkLoads    for bulk loads
    handover      Handover     for a drain
    maintenance   Maintenance  another number of shards, and the archive's marks
"""

from celery_wheel.store.ports.bulk_loads import BulkLoads
from celery_wheel.store.ports.handover import Handover
from celery_wheel.store.ports.maintenance import Maintenance
from celery_wheel.store.ports.pages import Disk, StoreSize
from celery_wheel.store.ports.store import Bell, FullStore, Renewal, Retention, SilentBell, Store, StoreIdentity

__all__ = [
    "Bell",
    "BulkLoads",
    "Disk",
    "FullStore",
    "Handover",
    "Maintenance",
    "Renewal",
    "Retention",
    "SilentBell",
    "Store",
    "StoreIdentity",
    "StoreSize",
]
