"""rq-scheduler: a sorted set of job ids by their next time, and a hash for each job.

Neither rq nor rq-scheduler need be installed. Their pickles are opened where they have plain values only: a pickle can
only run code by naming what to call. A job with other arguments is not imported, since a schedule's arguments are JSON.
The function of a job becomes the task of the same dotted name, or the task that the user names for it.
"""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from celery_wheel.errors import RecurrenceError
from celery_wheel.operations.schedule_import.crontab import spec_of
from celery_wheel.operations.schedule_import.foreign import UNREADABLE, ForeignSchedule, ImportOptions, NotImportable
from celery_wheel.recurring import Instants, Interval, Recurrence
from celery_wheel.values.error_text import error_text


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise NotImportable(f"its pickle has an object of {module}.{name}, and not only values of JSON")


def plain_value(raw: bytes) -> Any:
    """Return the value of a pickle. Raises NotImportable."""
    try:
        for operation, number, _ in pickletools.genops(raw):
            if operation.name.endswith("PUT") and int(number or 0) > len(raw):  # the memo would have so many places
                raise NotImportable("its bytes must be a pickle, and would take too much memory")
        return _PlainUnpickler(io.BytesIO(raw)).load()
    except NotImportable:
        raise
    except Exception as error:  # bytes that are no pickle raise nearly anything
        raise NotImportable(f"its bytes must be a pickle, and is none ({error_text(error)})") from None


JOBS = "rq:scheduler:scheduled_jobs"


def read(options: ImportOptions) -> Iterator[ForeignSchedule]:
    with options.redis("redis://localhost:6379/0") as client:
        for job_id, next_s in client.zscan_iter(JOBS):
            name = job_id.decode(errors="replace")
            job = client.hgetall(f"rq:job:{name}")
            try:
                yield _schedule(
                    name, round(next_s * 1_000), {key.decode(): value for key, value in job.items()}, options
                )
            except (NotImportable, RecurrenceError) as error:
                yield ForeignSchedule.refused(name, error)
            except UNREADABLE as error:
                yield ForeignSchedule.refused(name, f"its job cannot be read: {error_text(error)}")


def _schedule(name: str, next_ms: int, job: Mapping[str, bytes], options: ImportOptions) -> ForeignSchedule:
    if "data" not in job:
        raise NotImportable("its job is gone from Redis")
    found = _value(_inflated(job["data"]))
    if not isinstance(found, list | tuple) or len(found) != 4 or not isinstance(found[0], str):
        raise NotImportable("its job must be a function with its arguments")
    function, instance, args, kwargs = found
    meta = _value(job["meta"]) if job.get("meta") else {}
    if instance is not None:
        raise NotImportable(f"it calls a method of an object, {function}")
    task = options.task_of(function)
    origin = job.get("origin", b"default").decode(errors="replace")
    other = f"its queue of rq, {origin}, is not one of Celery's: name a queue by `schedules update`"
    note = "" if origin == "default" else other
    return ForeignSchedule.of(name, _recurrence(next_ms, meta, options), task, args, kwargs, note=note)


#: The most bytes of a job's call, inflated: a few bytes may inflate to all of the memory.
MAX_CALL = 16 * 2**20


def _inflated(raw: bytes) -> bytes:
    inflating = zlib.decompressobj()
    try:
        found = inflating.decompress(raw, MAX_CALL)
    except zlib.error:
        return raw
    if inflating.unconsumed_tail:
        raise NotImportable(f"its call has more than {MAX_CALL:,} bytes")
    return found if inflating.eof else raw


def _value(raw: bytes) -> Any:
    """Return a value of either serializer of rq."""
    try:
        return json.loads(raw)
    except ValueError:
        return plain_value(raw)


def _recurrence(next_ms: int, meta: Mapping[str, Any], options: ImportOptions) -> Recurrence:
    times = meta.get("repeat")
    if cron := meta.get("cron_string"):
        zone = options.local_zone  # rq-scheduler computes the next time by the clock of its host, whatever the option
        return Recurrence(spec_of(cron, either_day=False), zone, times=times)
    if interval := meta.get("interval"):
        return Recurrence(Interval(round(interval * 1_000), next_ms), start_ms=next_ms, times=times)
    return Recurrence(Instants((next_ms,)))
