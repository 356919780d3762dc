"""Drain a wheel into Celery's own queues or into a file, and import such a file.

::

    drain(app, store, to_broker=True)    wheel ──► each task's own queue, with its eta: workers hold it
    drain(app, store, file=path)         wheel ──► a file, one line for each task
    import_(app, path)                                  file ──► wheel: this one, or another

``drain`` runs without schedulers: it holds all shards, so that nothing is dispatched meanwhile. It first accepts the
messages in the wheel queues and the inbox, and a second drain goes on where a killed one stopped. Modules: ``hold`` has
the shards, ``to_broker`` and ``to_file`` are the two ways, ``record`` is a line of a file, ``import_file`` the way
back.
"""

from celery_wheel.operations.access import open_existing_store
from celery_wheel.operations.drain.drain import drain, would_drain
from celery_wheel.operations.drain.import_file import ImportResult, ReportedLine, import_
from celery_wheel.operations.drain.result import DrainResult, Progress

__all__ = [
    "DrainResult",
    "ImportResult",
    "Progress",
    "ReportedLine",
    "drain",
    "import_",
    "open_existing_store",
    "would_drain",
]
