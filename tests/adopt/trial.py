"""Two tasks of a site that wait, and the proof of where each waited, when it ran and how often.

::

    delayed(site, app)      a task of the project that the project itself delays
    retried(site, app)      a task of the project that tries again, since a server is busy

1. The task is pending in the wheel's store, while no queue of Redis has it, and no worker holds it for later.
2. It runs once, and not before its eta.
3. In the end the wheel's history has it as dispatched.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import redis

from tests.adopt.site import Site
from tests.kit.patience import patience, wait_until


@dataclass(frozen=True, slots=True)
class Trial:
    """How a task waited."""

    task: str
    late_ms: int  #: between its eta and its run in the worker


def queued(app: Any) -> list[str]:
    found = []
    with redis.Redis.from_url(app.conf.broker_url) as client:
        for key in client.scan_iter(_type="list"):
            found += [json.loads(raw)["headers"]["id"] for raw in client.lrange(key, 0, -1)]
    return found


def held(app: Any) -> list[str]:
    """Return the ids of the tasks that workers hold for later, as Celery's own ETA does."""
    answers = app.control.inspect(timeout=patience(2)).scheduled() or {}
    workers = {name: tasks for name, tasks in answers.items() if not name.startswith("wheel@")}
    assert workers, "no worker has answered"
    return [one["request"]["id"] for tasks in workers.values() for one in tasks]


def runs(site: Site, task: str, retries: int) -> list[dict[str, Any]]:
    return [one for one in site.notes() if (one["task"], one["retries"]) == (task, retries)]


def watch(site: Site, app: Any, task: str, retries: int) -> Trial:
    """Watch the pending task of that name until it has run: its first try, or the one after so many retries."""
    since_ms = 0
    if retries:
        wait_until(lambda: runs(site, task, retries - 1), f"{task} has been tried {retries} times", 60)
        since_ms = runs(site, task, retries - 1)[0]["at_ms"]

    found: list[Any] = []

    def waiting() -> list[Any]:
        found[:] = [one for one in app.wheel.pending(task=task).items if one.eta_ms > since_ms]
        return found

    wait_until(waiting, f"{task} is pending on the wheel")
    [waits] = found
    assert waits.task_id not in queued(app), f"{task} is in a queue while it is pending"
    assert waits.task_id not in held(app), f"a worker holds {task}"

    def done() -> list[dict[str, Any]]:
        return [one for one in runs(site, task, retries) if one["id"] == waits.task_id]

    wait_until(done, f"{task} has run", 60)
    wait_until(lambda: app.wheel.get(waits.task_id).state == "dispatched", f"{task} is dispatched in the history")
    [run] = done()
    assert run["at_ms"] >= waits.eta_ms, f"{task} ran {waits.eta_ms - run['at_ms']} ms early"
    return Trial(task, run["at_ms"] - waits.eta_ms)


def delayed(site: Site, app: Any) -> Trial:
    site.project.start(app)
    return watch(site, app, site.project.waits, 0)


def retried(site: Site, app: Any) -> Trial:
    site.project.fail(app)
    trial = watch(site, app, site.project.retries, site.project.refused)
    wait_until(lambda: site.busy.accepted, "the server that was busy has accepted the last try")
    return trial


def once(site: Site) -> None:
    """Assert that nothing ran twice: at the end, when a second copy has had its time."""
    assert site.busy.accepted == 1
    tries = [(one["id"], one["retries"]) for one in site.notes()]
    assert len(set(tries)) == len(tries), f"a task ran twice: {tries}"
