"""System checks. Those of the settings run always; those that ask the store or the broker with ``check --deploy``.

::

    always                                                  --deploy
    W001  no Celery app uses the wheel                      E003  the store is not to be reached
    E002  a setting makes no sense                          E004  the store is not migrated
    W005  SQLite upgrades its locks                         W008  Redis evicts
    W006  the wheel's queue is in task_queues               W010  the wheel's queue grows, nobody holds a shard
    W007  waiting in workers beyond the visibility timeout  W011  the broker does not answer
    W009  naive times are read as UTC                       W012  no scheduler has used the store yet

Django checks before ``migrate`` too, and an error would keep it from making the tables: so E004 is not always asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.db import connections

from celery_wheel.broker.names import wheel_queue_name
from celery_wheel.conf import Conf
from celery_wheel.errors import BrokerError, StoreUnused, WheelError
from django_wheel import asking
from django_wheel.database import store_alias
from django_wheel.project import wheel_app

TAG = "celery_wheel"

Checked = Iterator[CheckMessage]


@register(TAG)
def check_settings(app_configs: Sequence[AppConfig] | None, **options: Any) -> list[CheckMessage]:
    app = wheel_app()
    if app is None:
        return [
            Warning(
                "django_wheel is installed, but no Celery app of this process uses the wheel.",
                hint='Set CELERY_BEAT_SCHEDULER = "wheel" and import the Celery app in the __init__.py of the project.',
                id="django_wheel.W001",
            )
        ]
    conf = Conf(app)
    wrong: list[CheckMessage] = [
        Error(f"{problem}.", hint="The README has a table of the settings.", id="django_wheel.E002")
        for problem in conf.problems()
    ]
    return wrong or [*_locks(), *_queues(app, conf), *_visibility(app, conf), *_zone()]


@register(TAG, deploy=True)
def check_live(app_configs: Sequence[AppConfig] | None, **options: Any) -> list[CheckMessage]:
    app = wheel_app()
    if app is None or any(Conf(app).problems()):
        return []
    return [*_store(app)] or [*_eviction(app), *_growth(app)]


def _locks() -> Checked:
    alias = store_alias()
    if alias is None or connections[alias].vendor != "sqlite":
        return
    options = connections[alias].settings_dict["OPTIONS"]
    if str(options.get("transaction_mode") or "DEFERRED").upper() != "IMMEDIATE":
        yield Warning(
            f"The wheel writes to the SQLite file of DATABASES[{alias!r}] all the time, and a transaction of Django's "
            "that reads before it writes fails at once (database is locked) if that happens in between.",
            hint='Set OPTIONS["transaction_mode"] = "IMMEDIATE" (since Django 5.1) and OPTIONS["timeout"] = 20, or let '
            "wheel_store name a file of its own.",
            id="django_wheel.W005",
        )


def _queues(app: Any, conf: Conf) -> Checked:
    ours = {wheel_queue_name(conf.namespace, shard) for shard in range(conf.shards)}
    consumed = ours & {str(getattr(queue, "name", queue)) for queue in app.amqp.queues}
    if consumed:
        yield Warning(
            f"task_queues names {', '.join(sorted(consumed))}: workers would run what is to wait in the wheel.",
            hint="Remove it from task_queues, or give the wheel another wheel_namespace.",
            id="django_wheel.W006",
        )


def _visibility(app: Any, conf: Conf) -> Checked:
    url = str(app.conf.broker_write_url or "")
    if not url.startswith(("redis", "rediss", "sentinel", "sqs")):
        return
    timeout_s = (app.conf.broker_transport_options or {}).get("visibility_timeout", 3_600)
    if not conf.enabled or conf.min_delay_ms > timeout_s * 1_000:
        yield Warning(
            f"Tasks with a delay beyond the broker's visibility timeout ({timeout_s:g} s) wait in workers, and are "
            "delivered and run again and again.",
            hint="Set wheel_enabled = True and wheel_min_delay well below the visibility timeout.",
            id="django_wheel.W007",
        )


def _zone() -> Checked:
    if not settings.USE_TZ and settings.TIME_ZONE != "UTC":
        yield Warning(
            f"USE_TZ is False: Django's times are naive and of {settings.TIME_ZONE}, but a naive eta is read as UTC.",
            hint="Set USE_TZ = True, or give every eta a time zone.",
            id="django_wheel.W009",
        )


# -- those that ask ------------------------------------------------------------------------------------


def _store(app: Any) -> Checked:
    try:
        asking.open_store(app).close()
    except asking.NotMigrated as error:
        yield Error(f"{error}.", hint=error.hint, id="django_wheel.E004")
    except StoreUnused as error:
        yield Warning(f"{error}.", hint="Start one: celery -A <project> beat", id="django_wheel.W012")
    except WheelError as error:
        yield Error(f"{error}.", hint="Web processes and beat need the same store.", id="django_wheel.E003")


def _eviction(app: Any) -> Checked:
    try:
        policy = asking.eviction_policy(app)
    except BrokerError as error:
        yield Warning(f"{error}.", hint="Start it, or correct broker_url.", id="django_wheel.W011")
        return
    if policy not in (None, "noeviction"):
        yield Warning(
            f"Redis has maxmemory-policy {policy}: when its memory is full it drops queues, and with them tasks.",
            hint="Set maxmemory-policy to noeviction.",
            id="django_wheel.W008",
        )


def _growth(app: Any) -> Checked:
    try:
        waiting = asking.waiting_without_holder(app)
    except BrokerError:
        return  # W011
    for shard, count in waiting.items():
        yield Warning(
            f"{count:,} delayed tasks wait in the broker for shard {shard} of the wheel, which no scheduler holds.",
            hint="Start one: celery -A <project> beat",
            id="django_wheel.W010",
        )
