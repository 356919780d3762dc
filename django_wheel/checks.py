"""System checks. Those of the settings run always; those that ask the store or the broker with ``check --deploy``.

::

    always                                                  --deploy
    W001  no Celery app uses the wheel                      E003  the store is not to be reached
    E002  a setting makes no sense                          E004  the store is not migrated
    W005  SQLite upgrades its locks                         W008  Redis evicts
    W006  the wheel's queue is in task_queues               W010  the wheel's queue grows, nobody holds a shard
    W007  waiting in workers beyond the visibility timeout  W011  the broker does not answer
    W009  naive times are read as UTC                       W012  no scheduler has used the store yet
    E013  wheel_transactional, and the store is elsewhere

Django checks before ``migrate`` too, and an error would keep it from making the tables: so E004 is not always asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.db import connections

from celery_wheel.conf import Conf
from celery_wheel.doctor import Finding, Site, broker, queues
from celery_wheel.doctor import settings as asked
from celery_wheel.errors import BrokerError, SettingError, StoreUnused, WheelError
from celery_wheel.transaction import inbox_of
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
    return wrong or [
        *_elsewhere(app, conf),
        *_locks(conf),
        *_shown(asked.queues(app, conf), "W006"),
        *_shown(asked.visibility(app, conf), "W007"),
        *_zone(),
    ]


@register(TAG, deploy=True)
def check_live(app_configs: Sequence[AppConfig] | None, **options: Any) -> list[CheckMessage]:
    app = wheel_app()
    if app is None or any(Conf(app).problems()):
        return []
    return [*_store(app)] or [*_broker(app)]


def _shown(findings: Iterable[Finding], number: str) -> Checked:
    """What ``celery wheel doctor`` says as well."""
    for one in findings:
        yield Warning(one.text, hint=one.remedy, id=f"django_wheel.{number}")


def _elsewhere(app: Any, conf: Conf) -> Checked:
    if not conf.transactional:
        return
    try:
        inbox_of(app)
    except SettingError as error:
        yield Error(
            f"{error}.",
            hint='Set CELERY_WHEEL_STORE = "django://default", or CELERY_WHEEL_TRANSACTIONAL = False.',
            id="django_wheel.E013",
        )


def _locks(conf: Conf) -> Checked:
    alias = store_alias()
    if alias not in connections.settings or connections[alias].vendor != "sqlite":  # E003, E013
        return
    options = connections[alias].settings_dict["OPTIONS"]
    if str(options.get("transaction_mode") or "DEFERRED").upper() != "IMMEDIATE":
        schedules = "; scheduling a task is such a write (wheel_transactional)" if conf.transactional else ""
        yield Warning(
            f"The wheel writes to the SQLite file of DATABASES[{alias!r}] all the time, and a transaction of Django's "
            f"that reads before it writes fails at once (database is locked) if that happens in between{schedules}.",
            hint='Set OPTIONS["transaction_mode"] = "IMMEDIATE" (since Django 5.1) and OPTIONS["timeout"] = 20, or let '
            "wheel_store name a file of its own.",
            id="django_wheel.W005",
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


def _broker(app: Any) -> Checked:
    with Site(app) as site:
        trouble = site.broker_trouble if site.broker is None else ""
        try:
            yield from _shown(broker.eviction(site), "W008")
            yield from _shown(queues.growth(site), "W010")
        except BrokerError as error:
            trouble = str(error)
        if trouble:
            yield Warning(f"{trouble}.", hint="Start it, or correct broker_url.", id="django_wheel.W011")
