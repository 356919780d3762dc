"""celery-redbeat: a hash for each entry under its key prefix, with ``definition`` and ``meta`` in JSON.

celery-redbeat need not be installed. Its entries of ``beat_schedule`` are among them: import those, or let the wheel
follow ``beat_schedule``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

from celery.schedules import crontab, schedule

from celery_wheel import recurring
from celery_wheel.errors import RecurrenceError
from celery_wheel.operations.schedule_import.foreign import UNREADABLE, ForeignSchedule, ImportOptions, NotImportable
from celery_wheel.recurring.frequency import FREQUENCIES, WEEKDAYS
from celery_wheel.values.error_text import error_text
from celery_wheel.values.instants import ms_of

_BY = ("bysetpos", "bymonth", "bymonthday", "byyearday", "byweekno", "byhour", "byminute", "bysecond")


def read(options: ImportOptions) -> Iterator[ForeignSchedule]:
    conf = options.app.conf
    prefix = conf.get("redbeat_key_prefix") or "redbeat:"
    url = conf.get("redbeat_redis_url") or conf.broker_url or ""
    with options.redis(url) as client:
        escaped = "".join(f"[{one}]" if one in "*?[" else one for one in prefix)
        for key in sorted(client.scan_iter(match=f"{escaped}*", count=1_000, _type="hash")):
            definition, meta = client.hmget(key, "definition", "meta")
            if definition is not None:
                yield _schedule(key.decode(errors="replace").removeprefix(prefix), definition, meta, options)


def _schedule(key: str, definition: bytes, meta: bytes | None, options: ImportOptions) -> ForeignSchedule:
    try:
        found = json.loads(definition)
        last = _moment(json.loads(meta or b"{}").get("last_run_at"))
        return ForeignSchedule.of(
            found.get("name") or key,
            _recurrence(found["schedule"], last, options.app),
            found["task"],
            found.get("args") or (),
            found.get("kwargs") or {},
            found.get("options") or {},
            paused=found.get("enabled") is False,
        )
    except (NotImportable, RecurrenceError) as error:
        return ForeignSchedule.refused(key, error)
    except UNREADABLE as error:
        return ForeignSchedule.refused(key, f"its definition cannot be read: {error_text(error)}")


def _recurrence(value: Mapping[str, Any], last: datetime | None, app: Any) -> recurring.Recurrence:
    kind = value.get("__type__")
    if kind == "rrule":
        return _rrule(value)
    if kind == "interval":
        own = schedule(timedelta(seconds=value["every"]), relative=bool(value.get("relative")), app=app)
    elif kind == "crontab":
        own = crontab(**{name: part for name, part in value.items() if name != "__type__"}, app=app)
    else:
        raise NotImportable(f"its schedule is of a kind that only its application knows: {kind!r}")
    found = recurring.from_celery(own, ms_of(last) if last is not None else 0)
    if found is None:
        raise NotImportable(f"its instants cannot be computed: {own!r}")
    return found


def _rrule(value: Mapping[str, Any]) -> recurring.Recurrence:
    if value.get("byeaster") is not None:
        raise NotImportable("byeaster is not part of RFC 5545")
    offset = timedelta(minutes=value.get("dtstart_tz") or 0)
    zone = timezone(offset)
    start = datetime.fromtimestamp(value["dtstart"], zone)
    rule = {"FREQ": FREQUENCIES[value["freq"]], "INTERVAL": value.get("interval")}
    if value.get("wkst") is not None:
        rule["WKST"] = _day(value["wkst"])
    if value.get("until") is not None:
        rule["UNTIL"] = f"{datetime.fromtimestamp(value['until'], UTC):%Y%m%dT%H%M%SZ}"
    rule["COUNT"] = value.get("count")
    for name in _BY:
        rule[name.upper()] = _listed(value.get(name), str)
    rule["BYDAY"] = _listed(value.get("byweekday"), _day)
    parts = ";".join(f"{name}={part}" for name, part in rule.items() if part is not None)
    name = "UTC" if not offset else f"{start:%z}"[:3] + ":" + f"{start:%z}"[3:5]
    return recurring.Recurrence(recurring.RRule(f"DTSTART:{start:%Y%m%dT%H%M%S}\nRRULE:{parts}"), name)


def _listed(value: Any, text: Any) -> str | None:
    if value is None:
        return None
    return ",".join(map(text, value if isinstance(value, list) else [value]))


def _day(value: Any) -> str:
    return WEEKDAYS[value["wkday"] if isinstance(value, Mapping) else value]


def _moment(value: Mapping[str, Any] | None) -> datetime | None:
    """Return redbeat's datetime: its zone is a name, or seconds of an offset."""
    if value is None:
        return None
    parts = {name: part for name, part in value.items() if name not in ("__type__", "timezone")}
    zone = value.get("timezone", "UTC")
    return datetime(**parts, tzinfo=ZoneInfo(zone) if isinstance(zone, str) else timezone(timedelta(seconds=zone)))
