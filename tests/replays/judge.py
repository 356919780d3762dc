"""The judge of a replay: the picture of a store as pages and commands give it, and the messages in the queues."""

import base64
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from celery_wheel.control import Wheel
from celery_wheel.store.schedule_model import OCCURRENCE
from tests.replays.places import as_base64, as_read

#: No page of a replay is full.
ALL = 1_000


def picture(wheel: Wheel, names: Iterable[str]) -> dict[str, Any]:
    """Return all that a store says of its tasks, schedules and commands, as JSON has it; ``names`` are ids of tasks."""
    store = wheel.store
    shards = range(store.shards)
    found = {
        "states": {name: _state(wheel, name) for name in sorted(names)},
        "pending": sorted(one.task_id for one in wheel.pending(limit=ALL).items),
        "dispatched": sorted(one.task_id for one in wheel.history(limit=ALL).items),
        "stopped": sorted([one.task_id, one.kind, one.reason] for one in wheel.outcomes(limit=ALL).items),
        "settlements": len(wheel.settlements(limit=ALL).items),
        "counted": sum(one.pending for one in wheel.status()),
        "schedules": {one.name: _schedule(wheel, one) for one in wheel.schedules.list(limit=ALL).items},
        "deleted": _history(wheel, "deleted"),
        "gates": sorted([shard, one.what, one.state, one.reason] for shard in shards for one in store.gates(shard)),
        "tombstones": sorted(one for shard in shards for one in store.tombstone_ids(shard)),
        "loads": sorted([one.load.name, one.load.state, one.rows] for one in store.loads.latest()),
        "inbox": store.handover.count_inbox(),
        "audit": len(wheel.audit(limit=ALL).items),
    }
    return as_read(found)


def _state(wheel: Wheel, name: str) -> list[Any] | None:
    detail = wheel.get(name)
    if detail is None:
        return None
    task, kinds = detail.task, [one.kind for one in detail.outcomes]
    return [detail.state, task.task, task.target, task.eta_ms, as_base64(detail.body)[:400], kinds]


def _schedule(wheel: Wheel, one: Any) -> list[Any]:
    return [one.paused, one.broken, one.note, one.revision, one.source, one.task, *_history(wheel, one.name)]


def _history(wheel: Wheel, name: str) -> list[Any]:
    found = wheel.schedules.history(name)
    return [[one.what for one in found.revisions], len(found.runs), [one.reason for one in found.skips]]


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return the parts of a picture that are otherwise than expected."""
    pairs = {name: (expected.get(name), found.get(name)) for name in sorted(expected.keys() | found.keys())}
    return [f"{name}: expected {one!r}, found {other!r}" for name, (one, other) in pairs.items() if one != other]


def faults(expected: Iterable[Mapping[str, Any]], found: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the faults of the messages in the queues: each that is expected must be there once, as Celery sent it.

    Occurrences of schedules are left out.
    """
    wanted = {(one["queue"], name_of(one)): plain(one) for one in expected}
    there = [one for one in found if OCCURRENCE not in one["headers"]]
    counts = Counter((one["queue"], name_of(one)) for one in there)
    wrong = [
        f"{name} in {queue}: {counts[queue, name]} times"
        for queue, name in sorted(wanted.keys() | counts.keys())
        if (queue, name) not in wanted or counts[queue, name] != 1
    ]
    for one in there:
        of_celery = wanted.get((one["queue"], name_of(one)))
        if of_celery is not None and (others := differences(flat(of_celery), flat(plain(one)))):
            wrong.append(f"{name_of(one)}: {'; '.join(others)}")
    return wrong


def flat(message: Mapping[str, Any]) -> dict[str, Any]:
    parts = ("headers", "properties")
    rest = {name: value for name, value in message.items() if name not in parts}
    return rest | {f"{part}.{name}": one for part in parts for name, one in message[part].items()}


def name_of(message: Mapping[str, Any]) -> str:
    found = message["headers"].get("id") or json.loads(base64.b64decode(message["body"]))["id"]
    return str(found)


def plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without the eta that protocol 1 has in the body, where it stays."""
    if "id" in message["headers"]:
        return dict(message)
    body = json.loads(base64.b64decode(message["body"]))
    return {**message, "body": {**body, "eta": None}}
