"""Names of gates: whether anything that this process can see has the queue or the task of a pause.

::

    pending tasks, schedules                      of the store
    app.amqp.queues, task_routes, wheel_rate_limits, queues of tasks; app.tasks     of the app

An unknown name is no error: a queue may be known to other projects alone. A misspelt one would pause nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from celery_wheel.conf import Conf
from celery_wheel.store.ports import FullStore
from celery_wheel.store.schedule_model import ScheduleCriteria


def unknown_gate(app: Any, store: FullStore, scope: str, name: str) -> str:
    """Return a warning for the name of a queue or a task that nothing has; empty where anything has it."""
    pending = store.browse.names()
    if scope == "queue":
        known, criteria = {*pending.queues, *_queues(app)}, ScheduleCriteria(queue=name)
    else:
        known, criteria = {*pending.tasks, *app.tasks}, ScheduleCriteria(task=name)
    known |= Conf(app).rate_limits.keys()
    if name in known or store.browse.schedules(criteria, limit=1).items:
        return ""
    close = get_close_matches(name, sorted(known), 1)
    hint = f"did you mean {close[0]}?" if close else "is the name misspelt?"
    return (
        f"{scope} {name!r:.100} is paused, but no pending task, schedule, route or setting of this app has that name; "
        f"{hint} A resume ends the pause"
    )


def _queues(app: Any) -> Iterator[str]:
    yield from app.amqp.queues
    routes = [
        one
        for router in app.amqp.routes
        for one in (*getattr(router, "map", {}).values(), *getattr(router, "patterns", {}).values())
    ]
    routes += [{"queue": getattr(task, "queue", None)} for task in app.tasks.values()]
    for route in routes:
        queue = route if isinstance(route, str) else dict(route).get("queue")
        if queue is not None:
            yield str(getattr(queue, "name", queue))
