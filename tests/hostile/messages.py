"""Good messages of each kind, from which mutations begin; most are made by the code that makes them in production."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from typing import Any

from celery_wheel.broker.envelope import Envelope, encode
from celery_wheel.recurring import Crontab, Instants, Interval, Recurrence, RRule, to_json
from celery_wheel.store.message_pack import BODY, CREATED_MS, ENVELOPE, ETA_MS, ID, KEY, WHOLE, PackTemplate, pack

START_MS = 1_700_000_000_000

#: The id of each seed's envelope: a batch replaces it.
SEED_ID = "01936b3c-7d1e-7a30-8a55-3f4e1f6f3a10"

#: The body of a good message.
GOOD = b'[[1, "two"], {"three": null}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'


def wire(body: bytes = GOOD, headers: dict[str, Any] | None = None, own: Any = None, **fields: Any) -> bytes:
    """Return a message of a wheel queue, as kombu's virtual transports write it."""
    values = {"id": SEED_ID, "task": "proj.add", "task_id": "t", "eta_ms": START_MS + 1_000, "created_ms": START_MS}
    place = {"exchange": "", "exchange_type": "direct", "routing_key": "celery", "queue": "celery"}
    envelope = Envelope(**{**values, **place, **fields})
    own_headers = {"lang": "py", "task": envelope.task, "id": envelope.task_id, "eta": "2023-11-14T22:13:21+00:00"}
    message = {
        "body": b64encode(body).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {**own_headers, **(headers or {}), "wheel": encode(envelope, own)},
        "properties": {
            "correlation_id": envelope.task_id,
            "reply_to": "",
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": "wheel.0"},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": "d",
        },
    }
    return json.dumps(message).encode()


def numbered_id(number: int) -> str:
    return f"00000000-0000-7000-8000-{number:012d}"


def wheel_queue() -> list[bytes]:
    return [
        wire(),
        wire(priority=9, expires_ms=START_MS + 7_200_000, key="k", misfire_ms=60_000),
        wire(watch=["order:42", "ü"], unique="one", on_conflict="replace"),
        wire(unique="one", on_conflict="follow", latest_ms=START_MS + 60_000, window_ms=5_000),
        wire(unique="batch", batch=3, headers={"wheel_batch": "batch"}),
        wire(group="tenant:42", key="tenant:42", headers={"wheel_group": "tenant:42", "wheel_slot": 4096}),
        wire(exchange="news", exchange_type="topic", routing_key="a.b", queue=None, own={"spokes": 32}),
        wire(body=b"\x80\x04}\x94.", headers={"retries": 3, "timelimit": [None, 30.5], "stamps": {"a": ["b"]}}),
    ]


def reports() -> list[bytes]:
    report = {
        "task": "celery_wheel.run_ended",
        "task_id": "4096",
        "routing_key": "celery_wheel.run_ended",
        "queue": None,
    }
    return [wire(json.dumps(fields).encode(), **report) for fields in ({"run": 4096}, {"slot": 4096}, {"run": 2**62})]


#: A template with a place for each value of a row, as bulk loads write it.
TEMPLATE = PackTemplate(
    '{"body": %s, "headers": {"task": "proj.add", "id": %s, "wheel": {"v": 1, "task": "proj.add", "id": %s, "task_id": '
    '%s, "eta_ms": %s, "created_ms": %s, "key": %s, "exchange": "", "exchange_type": "direct", "routing_key": "celery"'
    ', "queue": "celery"}}, "properties": {"body_encoding": "utf-8"}}',
    (0, 1, 2, 1, 3, 4, 5),
    (BODY, ID, ENVELOPE, ETA_MS, CREATED_MS, KEY),
)


def _packed(count: int) -> bytes:
    rows = [("[[1], {}, {}]", f"p{n}", numbered_id(5_000 + n), START_MS + 1_000, START_MS, None) for n in range(count)]
    whole = [(WHOLE, [wire(task_id="whole").decode()])]
    return pack([*((TEMPLATE, [json.dumps(value) for value in row]) for row in rows), *whole])


def inbox() -> list[bytes]:
    packs = [_packed(6), _packed(1)]
    return [
        *(b"message " + one for one in wheel_queue()),
        *(b"messages " + zlib.decompress(one) for one in packs),
        *(b"packed " + one for one in packs),
    ]


def commands() -> list[bytes]:
    ask = {"id": SEED_ID, "actor": "admin", "reason": "by hand", "audit": {"origin": "cli", "at_ms": START_MS}}
    tasks = {"task_ids": ["t", "p1", "unknown"], **ask}
    limits = {"concurrency": 3, "rate_count": 5, "rate_per_ms": 1_000, "weight": 2, "max_runtime_ms": 60_000}
    definition = {"recurrence": {"interval": 60_000}, "task": "proj.add", "args": [1]}
    found: list[tuple[str, dict[str, Any]]] = [
        ("cancel", {**tasks, "for_good": True}),
        ("move", {**tasks, "eta_ms": START_MS + 5_000}),
        ("requeue", tasks),
        ("replay", {"rows": ["1024", "2048"], **ask}),
        ("complete", {"keys": ["order:42"], "how": "run", **ask}),
        ("pause", {"gates": ["queue:mail", "task:app.heavy", "group:tenant:42", "all:"], **ask}),
        ("resume", {"gates": ["queue:mail", "all:"], "per_ms": 60_000, **ask}),
        ("limit", {"groups": ["tenant:42"], "limits": limits, **ask}),
        ("erase", {"digests": ["abc"], "by": "group", "value": "tenant:42", "schedules": [], **ask}),
        ("erase", {"digests": ["abc"], "by": "schedule", "value": "nightly", "schedules": [4096], **ask}),
        ("accept_clock", {"clocks": ["wall"], **ask}),
        ("run_ended", {"run": 4096}),
        ("run_ended", {"slot": 4096}),
    ]
    found += [("schedule", {"do": "put", "definitions": {"s": one}, **ask}) for one in definitions()]
    found += [("schedule", {"do": do, "names": ["s"], **ask}) for do in ("delete", "pause", "resume", "trigger")]
    times = {"from_ms": START_MS, "upto_ms": START_MS + 3_600_000, "every_ms": 1_000, "overlap": None}
    schedule = {"definition": json.dumps(definition), "next_ms": START_MS + 60_000, "made": 3, "paused": False}
    revision = {"revision": 1, "definition": "{}", "what": "created", "actor": "a", "reason": "", "at_ms": START_MS}
    found += [
        ("schedule", {"do": "backfill", "names": ["s"], **times, **ask}),
        ("schedule", {"do": "patch", "definitions": {"s": {"args": [2]}}, "after_ms": {"s": START_MS}, **ask}),
        ("schedule", {"do": "restore", "definitions": {"r": {"schedule": schedule, "revisions": [revision]}}, **ask}),
    ]
    return [kind.encode() + b" " + json.dumps(fields).encode() for kind, fields in found]


def definitions() -> list[dict[str, Any]]:
    """Return a definition for each kind of recurrence, with policies and options."""
    rrule = "DTSTART:20230101T090000\nRRULE:FREQ=MONTHLY;BYDAY=1MO;COUNT=12"
    recurrences = [
        Recurrence(Interval(60_000, START_MS), start_ms=START_MS),
        Recurrence(Crontab("*/5", "8-18", "mon-fri"), "Europe/Paris", times=5),
        Recurrence(RRule(rrule), "America/New_York"),
        Recurrence(Instants((START_MS + 1_000, START_MS + 2_000))),
    ]
    policies = {"catch_up": "all", "catch_up_ms": 60_000, "jitter_ms": 1_000, "overlap": "skip"}
    call = {"task": "proj.add", "args": [1], "kwargs": {"a": "b"}, "options": {"queue": "mail", "priority": 3}}
    return [{"recurrence": to_json(one), **call, **policies} for one in recurrences]
