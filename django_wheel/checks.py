"""System checks. Checks of settings always run; checks that read the store or the broker run with ``check --deploy``.

::

    always                                                  --deploy
    W001  no Celery app uses the wheel                      E003  the store cannot be reached
    E002  a setting has a wrong value                       E004  the store is not migrated
    W005  SQLite upgrades its locks                         W008  Redis evicts keys
    W006  the wheel's queue is in task_queues               W010  the wheel's queue grows, a shard has no holder
    W007  workers hold tasks past the visibility timeout    W011  the broker does not answer
    W009  naive times are read as UTC                       I012  no scheduler has used the store yet
    E013  wheel_transactional with a store outside Django   W018  a loss of power may lose accepted tasks
    E015  the store is a database that Django does not have
    W016  a setting has no effect under its name
    W017  workers do not report ends of runs

    migrate
    W014  the migrations are recorded, and the tables are not there

Django also runs the checks before ``migrate``, and an error would keep it from creating the tables: so E004 is a check
of ``--deploy``. The texts are English, as those of Django's own checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import ERROR, CheckMessage, Error, Info, Tags, Warning, register
from django.db import connections

from celery_wheel.conf import Conf
from celery_wheel.errors import BrokerError, SettingError, StoreUnused, WheelError
from celery_wheel.operations.doctor import Finding, Grade, Installation, broker, shards, split_remedy, store
from celery_wheel.operations.doctor import settings as doctor_settings
from celery_wheel.operations.doctor.shards import START
from celery_wheel.producer.transaction import inbox_of
from django_wheel.database import NotMigrated, is_recorded_without_tables, migrate_command, open_store, store_alias
from django_wheel.project import how_to_use_it, wheel_app

TAG = "celery_wheel"

CheckMessages = Iterator[CheckMessage]


@register(TAG)
def check_settings(app_configs: Sequence[AppConfig] | None, **options: Any) -> list[CheckMessage]:
    app = wheel_app()
    if app is None:
        return [
            Warning(
                "django_wheel is installed, but no Celery app of this process uses the wheel.",
                hint=how_to_use_it(),
                id="django_wheel.W001",
            )
        ]
    site = Installation(app)
    conf = site.conf
    errors: list[CheckMessage] = [
        Error(f"{conf.spelled(str(problem))}.", hint=doctor_settings.MANUAL, id="django_wheel.E002")
        for problem in conf.problems()
    ]
    return errors or [
        *_alias(conf),
        *_transactional_store(app, conf),
        *_locks(conf),
        *_warnings(site, doctor_settings.check_queues(site), "W006"),
        *_warnings(site, doctor_settings.check_visibility(site), "W007"),
        *_warnings(site, doctor_settings.check(site), "W016"),
        *_warnings(site, doctor_settings.check_reports(site), "W017"),
        *_zone(),
    ]


@register(Tags.database)
def check_tables(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **options: Any
) -> list[CheckMessage]:
    """Name the way out before ``migrate`` says that there are no migrations to apply."""
    try:
        alias = store_alias()
    except SettingError:  # E002
        return []
    if alias is None or alias not in (databases or ()) or not is_recorded_without_tables(alias):
        return []
    return [
        Warning(
            f"DATABASES[{alias!r}] has no tables of the wheel, and `migrate` does not make them: wheel_store named "
            "another database when Django recorded the migrations of django_wheel.",
            hint=f"Run: {migrate_command(alias)}",
            id="django_wheel.W014",
        )
    ]


@register(TAG, deploy=True)
def check_live(app_configs: Sequence[AppConfig] | None, **options: Any) -> list[CheckMessage]:
    app = wheel_app()
    if app is None or any(Conf(app).problems()):
        return []
    store = [*_store(app)]
    return store if any(one.is_serious(ERROR) for one in store) else [*store, *_broker(app)]


def _warnings(site: Installation, findings: Iterable[Finding], number: str) -> CheckMessages:
    """Warnings that ``celery wheel doctor`` also prints."""
    for one in (finding.spelled(site.conf) for finding in findings if finding.grade is Grade.WARNING):
        yield Warning(one.text, hint=one.remedy, id=f"django_wheel.{number}")


def _hinted(
    kind: Callable[..., CheckMessage], conf: Conf, error: Exception, number: str, hint: str = ""
) -> CheckMessage:
    """Return the message of an error, whose hint is the remedy that it names, unless another one is given."""
    message = conf.spelled(str(error))
    problem, remedy = (message, hint) if hint else split_remedy(message)
    return kind(f"{problem}.", hint=remedy or doctor_settings.MANUAL, id=f"django_wheel.{number}")


def _alias(conf: Conf) -> CheckMessages:
    alias = store_alias()
    if alias is not None and not conf.transactional and alias not in connections.settings:  # E013
        yield Error(
            f"{conf.spelling('wheel_store')} names the database {alias!r}, which DATABASES does not have.",
            hint=f"Name one of {', '.join(connections.settings)}.",
            id="django_wheel.E015",
        )


def _transactional_store(app: Any, conf: Conf) -> CheckMessages:
    if not conf.transactional:
        return
    try:
        inbox_of(app)
    except SettingError as error:
        yield Error(
            f"{conf.spelled(str(error))}.",
            hint=f'Set {conf.spelling("wheel_store")} = "django://default", or '
            f"{conf.spelling('wheel_transactional')} = False.",
            id="django_wheel.E013",
        )


def _locks(conf: Conf) -> CheckMessages:
    alias = store_alias()
    if alias not in connections.settings or connections[alias].vendor != "sqlite":  # E013, E015
        return
    options = connections[alias].settings_dict["OPTIONS"]
    if str(options.get("transaction_mode") or "DEFERRED").upper() != "IMMEDIATE":
        schedules = (
            f" Scheduling a task is such a write, because {conf.spelling('wheel_transactional')} is set."
            if conf.transactional
            else ""
        )
        yield Warning(
            f"The wheel writes to the SQLite file of DATABASES[{alias!r}] all the time. A Django transaction that "
            f"reads before it writes fails at once (database is locked) if the wheel writes in between.{schedules}",
            hint='Set OPTIONS["transaction_mode"] = "IMMEDIATE" (since Django 5.1) and OPTIONS["timeout"] = 20, or '
            f"name a separate file in {conf.spelling('wheel_store')}.",
            id="django_wheel.W005",
        )


def _zone() -> CheckMessages:
    if not settings.USE_TZ and settings.TIME_ZONE != "UTC":
        yield Warning(
            f"USE_TZ is False: Django's times are naive times of {settings.TIME_ZONE}, but a naive eta is read as UTC.",
            hint="Set USE_TZ = True, or give every eta a time zone.",
            id="django_wheel.W009",
        )


# -- with --deploy ------------------------------------------------------------------------------------


def _store(app: Any) -> CheckMessages:
    conf = Conf(app)
    try:
        open_store(app).close()
    except NotMigrated as error:
        yield _hinted(Error, conf, error, "E004", error.hint)
    except StoreUnused as error:
        yield _hinted(Info, conf, error, "I012", START)
    except WheelError as error:
        yield _hinted(Error, conf, error, "E003")


def _broker(app: Any) -> CheckMessages:
    with Installation(app) as site:
        problem = BrokerError(site.broker_trouble) if site.broker is None else None
        try:
            yield from _warnings(site, broker.eviction(site), "W008")
            yield from _warnings(site, shards.growth(site), "W010")
            yield from _warnings(site, [*store.power(site), *broker.power(site)], "W018")
        except BrokerError as error:
            problem = error
        if problem is not None:
            yield _hinted(Warning, site.conf, problem, "W011")
