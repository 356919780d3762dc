"""What the rest of the project asks of a store; every store implements it. Standard library only.

::

    store         Store       what an engine asks               FullStore   all of it: what ``open_store`` returns
    browse        Browse      what people ask                   pages       its answers
    loads         BulkLoads   what a bulk load writes
    handover      Handover    what leaving takes along
    maintenance   Maintenance another number of shards, and the archive's marks
"""

from celery_wheel.store.ports.browse import Browse
from celery_wheel.store.ports.handover import Handover
from celery_wheel.store.ports.loads import BulkLoads
from celery_wheel.store.ports.maintenance import Maintenance
from celery_wheel.store.ports.store import FullStore, Store

__all__ = ["Browse", "BulkLoads", "FullStore", "Handover", "Maintenance", "Store"]
