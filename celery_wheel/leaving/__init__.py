"""Leaving the wheel, and coming back: everything that waits goes to Celery's own eta, or to a file, or out of one.

::

    drain(app, store, to_broker=True)    wheel ──► each task's own queue, with its eta: workers hold it
    drain(app, store, file=path)         wheel ──► a file, one line a task
    import_(app, path)                                  file ──► wheel: this one, or another

``drain`` is an operation without schedulers: it takes all shards, so that nothing is dispatched meanwhile, first takes
in what lies in the wheel queues and the inbox, and goes on where one that was killed has stopped. Files: ``hold`` has
the shards, ``to_broker`` and ``to_file`` are the two ways, ``record`` is a line of a file, ``importing`` the way back.
"""

from celery_wheel.leaving.draining import Drained, drain, open_for_leaving, would_drain
from celery_wheel.leaving.importing import BadLine, Imported, import_
from celery_wheel.leaving.progress import Progress

__all__ = ["BadLine", "Drained", "Imported", "Progress", "drain", "import_", "open_for_leaving", "would_drain"]
