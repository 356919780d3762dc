"""The settings: their values, and whether the delayed tasks of this app reach the wheel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery_wheel.app import WheelApp
from celery_wheel.broker.names import wheel_queue_name
from celery_wheel.conf import Conf
from celery_wheel.operations.doctor.finding import Finding, error, ok, warning
from celery_wheel.operations.doctor.installation import Installation

#: Transports that redeliver a message which was not acknowledged in time, and their default time.
REDELIVERING = ("redis", "rediss", "sentinel", "sqs")
VISIBILITY_S = 3_600


def check(site: Installation) -> Iterator[Finding]:
    problems = [str(problem) for problem in site.conf.problems()]
    for problem in problems:
        yield error("settings", problem, "Correct it; docs/settings.md has a table of the settings.")
    if problems:
        return
    yield ok("settings", "all values are valid")
    yield from _installed(site)
    yield from queues(site.app, site.conf) or [ok("task_queues", "no worker consumes a wheel queue")]
    yield from visibility(site.app, site.conf) or [ok("visibility", "no delay beyond the timeout is left to workers")]


def _installed(site: Installation) -> Iterator[Finding]:
    if not isinstance(site.app, WheelApp):
        yield warning(
            "app",
            f"the app {site.app.main!r} is a plain Celery app: its delayed tasks wait in workers, not in the wheel",
            "Make it with celery_wheel.Celery, or call celery_wheel.install(app), and restart its producers.",
        )
    elif not site.conf.enabled:
        yield warning(
            "app",
            "wheel_enabled is False: every delayed task is sent as Celery itself would",
            f"Set {site.conf.spelling('wheel_enabled')} = True, unless that is intended.",
        )
    else:
        yield ok("app", "its delayed tasks go to the wheel")


def queues(app: Any, conf: Conf) -> list[Finding]:
    """Return a finding for wheel queues that workers consume."""
    ours = {wheel_queue_name(conf.namespace, shard) for shard in range(conf.shards)}
    consumed = ours & {str(getattr(queue, "name", queue)) for queue in app.amqp.queues}
    if not consumed:
        return []
    return [
        warning(
            "task_queues",
            f"task_queues names {', '.join(sorted(consumed))}: workers would run tasks before they are due.",
            f"Remove them from task_queues, or give the wheel another {conf.spelling('wheel_namespace')}.",
        )
    ]


def visibility(app: Any, conf: Conf) -> list[Finding]:
    """Return a finding for delays in workers that are longer than the broker waits for an acknowledgement."""
    url = str(app.conf.broker_write_url or "")
    if not url.startswith(REDELIVERING):
        return []
    timeout_s = (app.conf.broker_transport_options or {}).get("visibility_timeout", VISIBILITY_S)
    if isinstance(app, WheelApp) and conf.enabled and conf.min_delay_ms <= timeout_s * 1_000:
        return []
    return [
        warning(
            "visibility",
            f"Tasks with a delay beyond the broker's visibility timeout ({timeout_s:g} s) wait in workers, and "
            "are redelivered and run again and again.",
            f"Set {conf.spelling('wheel_enabled')} = True, and {conf.spelling('wheel_min_delay')} well below the "
            "visibility timeout.",
        )
    ]
