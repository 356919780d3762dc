"""APScheduler 3.x: the jobs of its stores in Redis and in SQL, both as pickles.

Opening such a pickle runs code: of APScheduler, of the application, and of anybody who can write to that store. So it
takes ``trusted``, and APScheduler itself. The function of a job becomes the task of the same dotted name, the task
whose ``delay`` or ``apply_async`` it is, or the task that the user names for it.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from celery import Task

from celery_wheel.errors import PackageMissing, RecurrenceError, SettingError
from celery_wheel.operations.schedule_import.crontab import MONTHS, WEEKDAYS, numbers
from celery_wheel.operations.schedule_import.foreign import ForeignSchedule, ImportOptions, NotImportable
from celery_wheel.recurring import Crontab, Instants, Interval, Recurrence
from celery_wheel.values.error_text import error_text
from celery_wheel.values.instants import ms_of

JOBS = "apscheduler.jobs"


def read(options: ImportOptions) -> Iterator[ForeignSchedule]:
    if not options.trusted:
        raise SettingError(
            "APScheduler's jobs are pickles, and opening them runs code; if you trust everybody who can write to "
            f"{options.url or 'that store'}, add --trusted"
        )
    if not options.url:
        raise SettingError("APScheduler's store must be named: --url redis://… or the URL of its database")
    try:
        import_module("apscheduler.triggers.base")  # its pickles name classes of it
    except ImportError as error:
        raise PackageMissing("reading APScheduler's jobs needs it: pip install 'apscheduler<4'") from error
    options.app.loader.import_default_modules()  # a pickle may have tasks of the app
    for name, raw in _in_redis(options) if options.url.startswith(("redis", "unix:")) else _in_table(options):
        try:
            yield _schedule(name, pickle.loads(raw), options)  # noqa: S301 - the user trusts the store
        except (NotImportable, RecurrenceError) as error:
            yield ForeignSchedule.refused(name, error)
        except Exception as error:  # raised by code of the application
            yield ForeignSchedule.refused(name, f"its pickle cannot be opened: {error_text(error)}")


def _in_redis(options: ImportOptions) -> Iterator[tuple[str, bytes]]:
    with options.redis("") as client:
        for name, raw in sorted(client.hgetall(JOBS).items()):
            yield name.decode(errors="replace"), raw


def _in_table(options: ImportOptions) -> Iterator[tuple[str, bytes]]:
    from sqlalchemy import create_engine, text
    from sqlalchemy.exc import SQLAlchemyError

    engine = None
    try:
        engine = create_engine(options.url)
        with engine.connect() as connection:
            for name, raw in connection.execute(text("SELECT id, job_state FROM apscheduler_jobs ORDER BY id")):
                yield str(name), bytes(raw)
    except SQLAlchemyError as error:
        raise SettingError(f"the table apscheduler_jobs at --url must be readable, got {error}") from error
    finally:
        if engine is not None:
            engine.dispose()


def _schedule(name: str, job: Mapping[str, Any], options: ImportOptions) -> ForeignSchedule:
    task, args = _call(job, options)
    trigger = job["trigger"]
    return ForeignSchedule.of(
        name,
        _recurrence(trigger),
        task,
        args,
        job["kwargs"],
        paused=job["next_run_time"] is None,
        **_policies(job),
    )


def _call(job: Mapping[str, Any], options: ImportOptions) -> tuple[str, list[Any]]:
    function, args = job["func"], list(job["args"])
    method = function.rpartition(".")[2]
    if method in ("delay", "apply_async") and args and isinstance(args[0], Task):
        task = args.pop(0)
        if method == "delay":
            return task.name, args
        if len(args) > 1 or job["kwargs"]:
            raise NotImportable(f"it calls apply_async of {task.name} with options")
        return task.name, list(args[0]) if args else []
    return options.task_of(function), args


def _policies(job: Mapping[str, Any]) -> dict[str, Any]:
    jitter_s = getattr(job["trigger"], "jitter", None)
    return {
        **_catch_up(job),
        **({"overlap": "skip"} if job["max_instances"] == 1 else {}),
        **({"jitter_ms": round(jitter_s * 1_000)} if jitter_s else {}),
    }


def _catch_up(job: Mapping[str, Any]) -> dict[str, Any]:
    grace_s, coalesce = job["misfire_grace_time"], job["coalesce"]
    if coalesce and grace_s is None:
        return {}
    if coalesce or (grace_s is not None and grace_s < 60):
        return {"catch_up": "none"}
    # With an endless grace time as long as the wheel keeps history by default.
    return {"catch_up": "all", "catch_up_ms": 7 * 86_400_000 if grace_s is None else grace_s * 1_000}


def _recurrence(trigger: Any) -> Recurrence:
    kind = type(trigger).__name__
    if kind == "DateTrigger":
        return Recurrence(Instants((ms_of(trigger.run_date),)))
    if kind not in ("IntervalTrigger", "CronTrigger"):
        raise NotImportable(f"its trigger is of a kind that has no counterpart: {kind}")
    limits: dict[str, Any] = {
        "start_ms": None if trigger.start_date is None else ms_of(trigger.start_date),
        "until_ms": None if trigger.end_date is None else ms_of(trigger.end_date),
    }
    if kind == "IntervalTrigger":
        every_ms = round(trigger.interval.total_seconds() * 1_000)
        return Recurrence(Interval(every_ms, limits["start_ms"] or 0), **limits)
    return Recurrence(_crontab({field.name: str(field) for field in trigger.fields}), str(trigger.timezone), **limits)


def _crontab(fields: Mapping[str, str]) -> Crontab:
    for name in ("year", "week"):
        if fields[name] != "*":
            raise NotImportable(f"its cron field {name} is limited, {fields[name]!r}: an RRULE can say that")

    def listed(name: str, least: int, most: int, names: tuple[str, ...] = ()) -> str:
        return "*" if fields[name] == "*" else ",".join(map(str, numbers(fields[name], least, most, names)))

    weekdays = "*"
    if fields["day_of_week"] != "*":
        # Monday is 0 there, and 1 here.
        mondays = numbers(fields["day_of_week"], 0, 6, (*WEEKDAYS[1:], WEEKDAYS[0]))
        weekdays = ",".join(str((number + 1) % 7) for number in mondays)
    return Crontab(
        listed("minute", 0, 59),
        listed("hour", 0, 23),
        weekdays,
        listed("day", 1, 31),
        listed("month", 1, 12, MONTHS),
        listed("second", 0, 59),
    )
