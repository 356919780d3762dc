"""The settings: their values, and whether the delayed tasks of this app reach the wheel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from celery_wheel.app import WheelApp, reports_ends
from celery_wheel.broker import wheel_queue_name
from celery_wheel.broker.destinations import destinations_of, own_names
from celery_wheel.broker.sealed import MessageSeal
from celery_wheel.conf import Conf, in_django
from celery_wheel.operations.doctor.installation import Finding, Installation, error, ok, warning
from celery_wheel.values.format import printable

#: Names that a finding has at most.
NAMED = 5

MANUAL = 'The page "Settings" of the documentation has a table of them.'


def check(site: Installation) -> Iterator[Finding]:
    found = [error("settings", str(one), f"Correct it. {MANUAL}") for one in site.conf.problems()]
    found += [warning("settings", text, remedy) for text, remedy in site.conf.ignored()]
    yield from found or [ok("settings", "all values are valid")]


def check_app(site: Installation) -> Iterator[Finding]:
    if not isinstance(site.app, WheelApp):
        yield warning(
            "app",
            f"the app {site.app.main!r} is a plain Celery app: its delayed tasks wait in workers, not in the wheel",
            f"{installing(site.conf)} Restart everything that sends tasks.",
        )
    elif not site.conf.enabled:
        yield warning(
            "app",
            "wheel_enabled is False: every delayed task is sent as Celery itself would",
            "Set wheel_enabled = True, unless that is intended.",
        )
    else:
        yield ok("app", "its delayed tasks go to the wheel")


def installing(conf: Conf) -> str:
    if in_django():
        return f'Have "django_wheel" in INSTALLED_APPS, and set {conf.spelling("beat_scheduler")} = "wheel".'
    return "Make the app with celery_wheel.Celery, or call celery_wheel.install(app)."


def check_reports(site: Installation) -> Iterator[Finding]:
    """Warn where limits of groups need the reports of workers, and this app's workers make none."""
    classes = sorted(name for name, limit in site.conf.limits.items() if limit.concurrency is not None)
    if classes and not reports_ends(site.app):
        yield warning(
            "wheel_limits",
            f"workers of the app {site.app.main!r} do not report the ends of runs: the concurrency of "
            f"{_named(classes)} counts each task as in flight until its max_runtime is over",
            f"{installing(site.conf)} Restart the workers.",
        )


def check_queues(site: Installation) -> Iterator[Finding]:
    ours = {wheel_queue_name(site.conf.namespace, shard) for shard in range(site.conf.shards)}
    consumed = ours & {str(getattr(queue, "name", queue)) for queue in site.app.amqp.queues}
    if consumed:
        yield warning(
            "task_queues",
            f"task_queues names {', '.join(sorted(consumed))}: workers would run tasks before they are due.",
            "Remove them from task_queues, or give the wheel another wheel_namespace.",
        )
    else:
        yield ok("task_queues", "no worker consumes a wheel queue")


def destinations(site: Installation) -> Iterator[Finding]:
    """Yield what ``wheel_destinations`` would refuse: queues of the app itself, and queues of pending tasks."""
    found = destinations_of(site.app)
    if found.allowed is None:
        return
    signs = bool(MessageSeal.of(site.conf).signing.current)
    refused = [name for name in sorted(own_names(site.app)) if found.refusal("", name, name, signed=signs)]
    own = f"queues and exchanges of this app: {_named(refused)}"
    pending = Counter[str]()
    for shard in range(site.store.shards if site.store is not None else 0):
        for key, count in site.store.pending(shard).items() if site.store is not None else ():
            pending[key.queue] += count
    waiting = [name for name in sorted(pending) if found.refusal("", name, name)]
    about = "destinations"
    remedy = f"Add the names, or a pattern for them, to {site.conf.spelling('wheel_destinations')}."
    if refused:
        yield warning(about, f"{found.setting} does not name {own}: delayed tasks for them are refused", remedy)
    if waiting:
        count = sum(pending[name] for name in waiting)
        text = f"{count:,} pending tasks for {_named(waiting)} are rejected when they are due, unless they were signed "
        yield warning(about, f"{text}or go there by an exchange that {found.setting} names", remedy)
    if not refused and not waiting:
        yield ok(about, f"{found.setting} names all queues of this app and of pending tasks")


def _named(names: list[str]) -> str:
    return f"{', '.join(map(printable, names[:NAMED]))}{', …' if len(names) > NAMED else ''}"


def check_visibility(site: Installation) -> Iterator[Finding]:
    app, conf, remedy = site.app, site.conf, ""
    timeout_s = (app.conf.broker_transport_options or {}).get("visibility_timeout", 3_600)
    # Others do not redeliver after a time.
    if str(app.conf.broker_write_url or "").startswith(("redis", "rediss", "sentinel", "sqs")):
        if not isinstance(app, WheelApp):
            remedy = installing(conf)
        elif not conf.enabled:
            remedy = "Set wheel_enabled = True."
        elif conf.min_delay_ms > timeout_s * 1_000:
            remedy = f"Set wheel_min_delay, {conf.min_delay_ms / 1_000:g} s now, well below the visibility timeout."
    if remedy:
        yield warning(
            "visibility",
            f"Tasks with a delay beyond the broker's visibility timeout ({timeout_s:g} s) wait in workers, and "
            "are redelivered and run again and again.",
            remedy,
        )
    else:
        yield ok("visibility", "no delay beyond the timeout is left to workers")
