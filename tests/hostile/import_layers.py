"""Schedules of other systems: their entries in Redis, in a crontab, and in the tables of django-celery-beat.

::

    64 hostile entries between two good ones ─► each is a definition that the wheel can run, or is refused with its
                                               reason; the good ones are read as if they were alone

The other system is only read, so nothing has to keep the bytes. The pickles of APScheduler are left out: the user
trusts them, and opening them runs code.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from celery_wheel import Celery
from celery_wheel.operations.schedule_import import READERS, ForeignSchedule, ImportOptions
from celery_wheel.recurring.definition import read_definition
from tests.hostile.judge import Broken, Layer
from tests.hostile.messages import START_MS


class MemoryOptions(ImportOptions):
    """Options whose Redis is a dictionary."""

    keys: ClassVar[dict[bytes, Any]] = {}

    @contextmanager
    def redis(self, url: str) -> Iterator[Any]:
        yield self

    def scan_iter(self, **options: Any) -> Iterator[bytes]:
        return iter(key for key in self.keys if key.startswith(b"redbeat:"))

    def hmget(self, key: bytes, *names: str) -> list[bytes | None]:
        return [self.keys[key].get(name.encode()) for name in names]

    def hgetall(self, key: str) -> Mapping[bytes, bytes]:
        found: Mapping[bytes, bytes] = self.keys.get(key.encode(), {})
        return found

    def zscan_iter(self, key: str) -> Iterator[tuple[bytes, float]]:
        found: dict[bytes, float] = self.keys[key.encode()]
        return iter(found.items())


class ImportLayer(Layer):
    system: ClassVar[str]
    good: ClassVar[bytes]

    def __init__(self, folder: Path, read: Callable[[Any], Iterator[ForeignSchedule]] | None = None) -> None:
        super().__init__(folder)
        self.app = Celery("hostile", broker="memory://", set_as_current=False)
        self.options = MemoryOptions(self.app, file=folder / "crontab", task="proj.run", zone="Europe/Paris")
        self.options = replace(self.options, tasks={"jobs.report": "proj.report"})
        self.read = read or READERS[self.system]

    def put(self, batch: Sequence[bytes]) -> None:
        """Write the entries where the reader finds them."""

    def look(self, data: bytes) -> None:
        self.put([data])
        list(self.read(self.options))

    def judge(self, batch: Sequence[bytes]) -> Counter[str]:
        entries = [self.good, *batch, self.good]
        self.put(entries)
        found = list(self.read(self.options))
        ends = [_call(one) for one in (found[0], found[-1])] if found else []
        self.put([self.good])
        (alone,) = self.read(self.options)
        if ends != [_call(alone)] * 2:
            raise Broken(f"the good entries beside these were to be read, got {found[:1]} and {found[-1:]}")
        return Counter(self._fate(one) for one in found[1:-1]) + Counter({"left out": len(entries) - len(found)})

    def _fate(self, one: ForeignSchedule) -> str:
        if one.definition is None:
            if not one.reason:
                raise Broken("a refused entry must have a reason")
            return "rejected"
        read_definition(one.text).recurrence.next_after(START_MS)
        return "accepted"


def _call(one: ForeignSchedule) -> tuple[Any, Any]:
    definition = one.definition or {}
    return definition.get("recurrence"), definition.get("task")


def _values(data: bytes) -> dict[str, Any]:
    """Return the members of an entry; bytes that are no object are all of its first one."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"definition": data.decode("latin-1")}


def _bytes(value: Any) -> bytes:
    try:
        text = value if isinstance(value, str) else json.dumps(value)
    except RecursionError:  # of this program; a writer may nest as deeply as it likes
        text = "[" * 3_000
    return text.encode("utf-8", "surrogatepass")


class RedBeat(ImportLayer):
    name: ClassVar[str] = "import-redbeat"
    system: ClassVar[str] = "redbeat"
    good: ClassVar[bytes] = json.dumps(
        {"definition": {"name": "good", "task": "proj.add", "schedule": {"__type__": "interval", "every": 60}}}
    ).encode()

    @property
    def seeds(self) -> list[bytes]:
        call = {"task": "proj.add", "args": [1], "kwargs": {"a": "b"}, "options": {"queue": "mail"}, "enabled": True}
        cron = {"minute": "*/5", "hour": "8-18", "day_of_week": "mon-fri", "day_of_month": "*", "month_of_year": "*"}
        rrule = {"freq": 2, "dtstart": 1_700_000_000.0, "interval": 2, "count": 5, "until": None, "byweekday": [0, 3]}
        rrule |= {"byhour": 9, "wkst": {"wkday": 1, "n": None}, "bymonth": [1, 2], "dtstart_tz": 120}
        last = {"__type__": "datetime", "year": 2023, "month": 11, "day": 14, "hour": 22, "timezone": "Europe/Paris"}
        schedules = [
            {"__type__": "interval", "every": 90.5, "relative": True},
            {"__type__": "crontab", **cron},
            {"__type__": "rrule", **rrule},
        ]
        return [
            json.dumps(
                {"definition": {"name": f"s{n}", "schedule": one, **call}, "meta": {"last_run_at": last}}
            ).encode()
            for n, one in enumerate(schedules)
        ]

    def put(self, batch: Sequence[bytes]) -> None:
        found: dict[bytes, Any] = {}
        for number, data in enumerate(batch):
            values = _values(data)
            fields = {name.encode("utf-8", "replace"): _bytes(value) for name, value in values.items()}
            found[b"redbeat:%04d" % number] = {b"definition": b"null", **fields}
        self.options.keys.clear()
        self.options.keys.update(found)


class Crontab(ImportLayer):
    name: ClassVar[str] = "import-crontab"
    system: ClassVar[str] = "crontab"
    good: ClassVar[bytes] = b"*/5 * * * * good"

    @property
    def seeds(self) -> list[bytes]:
        lines = ["0 9 1,15 * mon-fri /usr/bin/report --all", "@daily backup 2>&1", "CRON_TZ=Europe/Berlin", "# a note"]
        lines += [
            "59 23 31 12 * echo \\% > /dev/null",
            "*/7 1-5/2 * jan,feb 7 a",
            "@reboot once",
            "0 0 * * * mail % text",
        ]
        return [line.encode() for line in lines]

    def prepared(self, data: bytes, number: int) -> bytes:
        text = " ".join(data.decode("utf-8", "replace").splitlines())
        return text.encode("utf-8", "replace")

    def put(self, batch: Sequence[bytes]) -> None:
        assert self.options.file is not None
        self.options.file.write_bytes(b"\n".join(batch))

    def judge(self, batch: Sequence[bytes]) -> Counter[str]:
        kept = [line for line in batch if b"CRON_TZ" not in line]  # which changes the zone of the lines behind it
        zones = [line for line in batch if b"CRON_TZ" in line]
        for line in zones:
            self.look(line)
        self.options = replace(self.options, zone="")
        try:
            for line in zones:
                self.look(line + b"\n" + self.good)
        finally:
            self.options = replace(self.options, zone="Europe/Paris")
        names = self._first_names(kept)
        return names + Counter({"left out": len(zones)})

    def _first_names(self, lines: Sequence[bytes]) -> Counter[str]:
        self.put([self.good, *lines, b"*/5 * * * * last"])
        found = list(self.read(self.options))
        ends = [one.name for one in (found[0], found[-1]) if one.definition is not None]
        if ends != ["good", "last"]:
            raise Broken(f"the good lines beside these were to be read, got {ends}")
        counts = Counter(self._fate(one) for one in found[1:-1])
        return counts + Counter({"left out": len(lines) + 2 - len(found)})


class RqScheduler(ImportLayer):
    """Jobs, whose ``data`` is in base64 a pickle or JSON; it is compressed, unless ``plain`` says otherwise."""

    name: ClassVar[str] = "import-rq-scheduler"
    system: ClassVar[str] = "rq-scheduler"

    @staticmethod
    def _job(its_meta: Any, score: float = 1_700_000_060.0, **more: Any) -> bytes:
        data = base64.b64encode(pickle.dumps(("jobs.report", None, (1, "a"), {"b": [2]}))).decode()
        fields = {"data": data, "meta": base64.b64encode(pickle.dumps(its_meta)).decode(), "origin": "default"}
        return json.dumps({"score": score, **fields, **more}).encode()

    good: ClassVar[bytes] = _job.__func__({"interval": 60})  # type: ignore[attr-defined]

    @property
    def seeds(self) -> list[bytes]:
        data = base64.b64encode(json.dumps(["jobs.report", None, [], {}]).encode()).decode()
        meta = base64.b64encode(json.dumps({"interval": 30, "repeat": 4}).encode()).decode()
        cron = {"cron_string": "0 6 * * 1-5", "use_local_timezone": True, "repeat": 3}
        return [
            self.good,
            self._job(cron),
            self._job({}),
            self._job({}, data=data, meta=meta, plain=True, origin="low"),
        ]

    def put(self, batch: Sequence[bytes]) -> None:
        found: dict[bytes, Any] = {}
        scores: dict[bytes, float] = {}
        for number, data in enumerate(batch):
            values = _values(data)
            name, score = b"%04d" % number, values.pop("score", 0)
            is_number = isinstance(score, int | float) and score == score and abs(score) < 1e308
            scores[name] = float(score) if is_number or score in (float("inf"), float("-inf")) else 0.0
            is_plain = values.pop("plain", False)
            fields = {key.encode("utf-8", "replace"): _decoded(value) for key, value in values.items()}
            if b"data" in fields and not is_plain:
                fields[b"data"] = zlib.compress(fields[b"data"])
            found[b"rq:job:" + name] = fields
        self.options.keys.clear()
        self.options.keys.update({**found, b"rq:scheduler:scheduled_jobs": scores})


def _decoded(value: Any) -> bytes:
    raw = _bytes(value)
    try:
        return base64.b64decode(raw, validate=True)
    except ValueError:
        return raw


class DjangoRows(ImportLayer):
    """Rows of django-celery-beat, as any program may write them: SQLite takes every value in a column."""

    name: ClassVar[str] = "django-celery-beat"
    system: ClassVar[str] = "django-celery-beat"
    good: ClassVar[bytes] = json.dumps({"interval": {"every": 5, "period": "minutes"}}).encode()

    def __init__(self, folder: Path, read: Callable[[Any], Iterator[ForeignSchedule]] | None = None) -> None:
        os.environ |= {"SITE_FOLDER": str(folder), "SITE_APPS": "django_celery_beat"}
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.kit.site.settings")
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        super().__init__(folder, read)

    @property
    def seeds(self) -> list[bytes]:
        call = {
            "task": "proj.add",
            "args": "[1]",
            "kwargs": '{"a": "b"}',
            "headers": "{}",
            "queue": "mail",
            "priority": 3,
        }
        times = {
            "start_time": "2023-11-14 22:13:20",
            "last_run_at": "2023-11-15 00:00:00",
            "expires": None,
            "enabled": 1,
        }
        cron = {"minute": "*/5", "hour": "8-18", "day_of_week": "1-5", "timezone": "Europe/Paris"}
        kinds: dict[str, Any] = {
            "interval": {"every": 10, "period": "seconds"},
            "crontab": {**cron, "day_of_month": "*", "month_of_year": "*"},
            "solar": {"event": "sunset", "latitude": "52.5", "longitude": "13.4"},
            "clocked": {"clocked_time": "2023-12-01 12:00:00"},
        }
        return [json.dumps({kind: fields, **call, **times}).encode() for kind, fields in kinds.items()]

    def look(self, data: bytes) -> None:
        """Leave it to the batch: a transaction for one row takes as long as for 64."""

    def put(self, batch: Sequence[bytes]) -> None:
        from django.db import IntegrityError, connection, transaction
        from django_celery_beat import models

        kinds = {
            "interval": models.IntervalSchedule,
            "crontab": models.CrontabSchedule,
            "solar": models.SolarSchedule,
            "clocked": models.ClockedSchedule,
        }
        with connection.constraint_checks_disabled(), transaction.atomic(), connection.cursor() as cursor:
            for model in (models.PeriodicTask, *kinds.values()):
                cursor.execute(f"DELETE FROM {model._meta.db_table}")
            for number, data in enumerate(batch, start=1):
                values = _values(data)
                row: dict[str, Any] = {**DEFAULTS}
                for kind, model in kinds.items():
                    of_kind = values.pop(kind, None)
                    if of_kind is not None:
                        row[f"{kind}_id"] = number
                        with suppress(IntegrityError), transaction.atomic():
                            _insert(
                                cursor, model, number, SCHEDULES[kind], of_kind if isinstance(of_kind, dict) else {}
                            )
                with suppress(IntegrityError), transaction.atomic():  # the database refuses some rows itself
                    _insert(cursor, models.PeriodicTask, number, row, values)


#: Values of columns that may not be missing.
DEFAULTS = {
    "task": "proj.add",
    "args": "[]",
    "kwargs": "{}",
    "headers": "{}",
    "enabled": 1,
    "one_off": 0,
    "description": "",
}
DEFAULTS |= {"total_run_count": 0, "date_changed": "2023-11-14 00:00:00"}
SCHEDULES: dict[str, dict[str, Any]] = {
    "interval": {"every": 1, "period": "days"},
    "crontab": {
        "minute": "0",
        "hour": "0",
        "day_of_week": "*",
        "day_of_month": "*",
        "month_of_year": "*",
        "timezone": "UTC",
    },
    "solar": {"event": "sunset", "latitude": "0", "longitude": "0"},
    "clocked": {"clocked_time": "2023-12-01 12:00:00"},
}


def _insert(cursor: Any, model: Any, number: int, defaults: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Insert a row of the values that are of its columns, under a number and a name of its own."""
    names = {field.column for field in model._meta.concrete_fields}
    row = {**defaults, **{name: _column(value) for name, value in values.items() if value is not None}}
    row |= {"id": number, "name": f"r{number}"}
    own = {name: value for name, value in row.items() if name in names}
    places = ", ".join(["%s"] * len(own))
    cursor.execute(f"INSERT INTO {model._meta.db_table} ({', '.join(own)}) VALUES ({places})", list(own.values()))


def _column(value: Any) -> Any:
    """Return a value that SQLite can hold: no objects, no larger numbers, and no lone surrogates."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if (isinstance(value, int) and abs(value) >= 2**63) or value != value:
        return str(value)[:4_000]
    return json.dumps(value)[:100_000] if isinstance(value, dict | list) else value
