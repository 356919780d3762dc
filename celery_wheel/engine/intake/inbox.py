"""The inbox of a shard: requests and messages that other processes wrote into the store, and their parser.

::

    kind          payload
    cancel        {"task_ids": [str, …], "id": UUID, "actor": str, "reason": str}; without an id there is no answer;
                  {"for_good": true}: published tasks get a tombstone too, which cancels their retries within a day
    move          as cancel, without for_good and with {"eta_ms": int}; null: now
    requeue       as cancel, without for_good
    replay        as requeue, with {"rows": [str, …]} in place of the task ids: numbers of rows in decimal digits
    complete      {"keys": [str, …], "how": "cancel" or "run"}, with id, actor and reason as above
    pause         {"gates": ["queue:mail", "task:app.heavy", "group:tenant:42", "all:"]}, with id, actor and reason as
                  above
    resume        as pause, with {"per_ms": int}: the backlog is published evenly in that time; null: at once
    limit         {"groups": ["tenant:42"], "limits": {"concurrency": int, "rate_count": int, "rate_per_ms": int,
                  "weight": int, "max_runtime_ms": int}}, with id, actor and reason as above; some of the limits, in the
                  place of all that each group had of its own; null in the place of the object: none
    erase         {"digests": [str], "by": "task_id", "key", "group" or "schedule", "value": str,
                  "schedules": [int, …]}, with id, actor and reason as above; the holder adds {"progress": {…}}, see
                  ``ErasureProgress``
    bulk          {"bulks": [UUID], "do": "begin", "stop", "continue" or "discard"}, with id, actor and reason as above;
                  to begin: {"verb": "cancel", "move" or "requeue", "criteria": {name: value}, "outcome": "rejected" or
                  "expired", "eta_ms": int}; see ``engine.bulk_action``
    accept_clock  {"clocks": ["wall"]}, with id, actor and reason as above
    schedule      {"do": …, "names": [str, …]}, with id, actor and reason as above; see ``recurring.change``. A do of
                  DEFINING: {"definitions": {name: {…}, …}} in place of the names; create, put and update:
                  {"source": "api", "after_ms": {name: int}, "edited_ms": {name: int}}
                  backfill: {"from_ms": int, "upto_ms": int, "every_ms": int, "overlap": str or null}
                  {"results": {name: {…}}}: those of names that other shards have carried out before
    run_ended     {"run": int}, the id of a run that is over; or {"slot": int}: the run of a group is over, or will be
                  retried as another one. No answer. Workers send it to the wheel queue

    A command may have {"audit": {"origin": …, "request": UUID, "at_ms": int, "whole": bool}}, all but the origin
    optional.

Text that no store accepts (NUL, lone surrogates) makes an item unreadable here: in a commit it would end the state, and
every later state too, since the item would stay in the inbox.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from celery_wheel.engine.intake.stored_form import Decode, DerivedId, unpack_messages
from celery_wheel.recurring.definition import BACKFILL_OVERLAPS
from celery_wheel.store import model
from celery_wheel.store.audit_model import MACHINES, ORIGINS, PROGRAM, UNKNOWN_ORIGIN, AuditEntry, AuditHead
from celery_wheel.store.bulk_model import DOINGS, VERBS, BulkRequest, Do
from celery_wheel.store.erasure_model import CRITERIA, ErasureCriterion, ErasureProgress
from celery_wheel.store.schedule_model import RUN_ENDED, SCHEDULE, is_run_id
from celery_wheel.values.error_text import Malformed, error_text
from celery_wheel.values.text import END_OF_TIME_MS, check_group, check_text

MAX_NAMES = 1_000

#: Kind → name of the command's list, where it is not "task_ids".
LISTS = {model.REPLAY: "rows", model.ACCEPT_CLOCK: "clocks"}

#: The limits of a group, each with the most that it can be.
LIMITS = {
    **dict.fromkeys(("concurrency", "rate_count", "weight"), 10**9),
    **dict.fromkeys(("rate_per_ms", "max_runtime_ms"), END_OF_TIME_MS),
}

#: Changes of schedules that bring a definition for each name.
DEFINING = ("create", "put", "update", "patch", "rollback", "restore")

#: The database's largest whole number has 19 digits.
_ROW = re.compile(r"[0-9]{1,18}").fullmatch


@dataclass(slots=True, frozen=True, kw_only=True)
class Asked:
    """All commands have this."""

    item_id: int
    actor: str
    reason: str
    answer_to: str | None  #: id under which the answer is stored
    audit: AuditHead | None = None  #: None: the audit log does not have it


@dataclass(slots=True, frozen=True)
class Command(Asked):
    """A command without a class of its own."""

    kind: str
    task_ids: list[str]  #: or the names in LISTS; the names of gates for a pause or a resume, of groups for limits
    eta_ms: int | None = None  #: move: the new eta; None: now
    for_good: bool = False  #: cancel: published tasks get a tombstone too
    per_ms: int | None = None  #: resume: time for the backlog; None: at once
    limits: dict[str, int | None] | None = None  #: limit: each of LIMITS; None: the groups have no own limits any more


@dataclass(slots=True, frozen=True)
class ScheduleCommand(Asked):
    """A command ``schedule``."""

    do: str
    names: list[str]
    definitions: dict[str, Any] = field(default_factory=dict)  #: by name, for those in DEFINING
    source: str = "api"
    from_ms: int | None = None
    upto_ms: int | None = None
    every_ms: int = 0  #: backfill: the time between the runs; 0: all at once
    overlap: str | None = None  #: backfill: the policy for its runs; None: that of the schedule
    after_ms: dict[str, int] = field(default_factory=dict)  #: by name: one that has made nothing begins after it
    edited_ms: dict[str, int] = field(default_factory=dict)  #: by name: one that has goes on after it
    payload: bytes = field(default=b"", repr=False)  #: as it was read
    results: dict[str, Any] = field(default_factory=dict)  #: of names that other shards have carried out

    @property
    def is_request(self) -> bool:
        """Whether it asks for occurrences, and leaves the schedule as it is."""
        return self.do in ("trigger", "backfill")


@dataclass(slots=True, frozen=True)
class RunEnded:
    """The end of a run, as its worker reports it."""

    item_id: int | None  #: None: it came by the wheel queue
    run: int  #: id of its row
    of_slot: bool = False  #: only its slot in a group has ended: its schedule's run may go on with a retry


@dataclass(slots=True, frozen=True)
class Completion(Asked):
    """A command ``complete``: cancel, or run at once, every pending task that watches one of the keys."""

    keys: list[str]
    run: bool  #: run the tasks at once; else cancel them


@dataclass(slots=True, frozen=True)
class Erasure(Asked):
    """A command ``erase``. It stays in the inbox, with its progress, until all that matches is erased."""

    digest: str  #: stands for the value in the answer and in the audit log
    which: ErasureCriterion
    payload: bytes = field(default=b"", repr=False)  #: as it was read
    progress: ErasureProgress | None = None  #: None: nothing is done yet

    def with_progress(self, progress: ErasureProgress) -> bytes:
        """Return the payload with this progress."""
        return json.dumps({**json.loads(self.payload), "progress": asdict(progress)}).encode()


@dataclass(slots=True, frozen=True)
class BulkCommand(Asked):
    """A command ``bulk``: it begins, stops, continues or discards a bulk action."""

    do: Do
    action: str  #: id of the bulk action
    request: BulkRequest | None = None  #: to begin


AnyCommand = Command | Completion | ScheduleCommand | Erasure | BulkCommand


def parse(
    item: model.InboxItem, decode: Decode, derived_id: DerivedId, *, programs: bool = True
) -> list[model.Arrival] | AnyCommand | RunEnded:
    """Return the messages or the command of an item; an item that cannot be read is Unreadable, with its bytes.

    ``programs``: the audit log has the ordinary commands of programs, too.
    """
    if item.kind == "message":
        return [decode(item.payload)]
    try:
        if item.kind == model.MESSAGES:
            return unpack_messages(item.payload, decode)
        fields = json.loads(item.payload)
        if item.kind == RUN_ENDED:
            return _run_ended(item.id, fields)
        found = _PARSERS.get(item.kind, _command)(item, fields)
        head = audit_head(item, fields, derived_id)
        return replace(found, audit=head if programs or head.origin != PROGRAM else None)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        # The bytes too: items are numbered anew where a store was moved to another database.
        envelope_id = derived_id(f"inbox {item.id} {item.kind} {item.payload.hex()}")
        reason = f"inbox item {item.id} cannot be read: {error_text(error)}"
        return [model.Unreadable(envelope_id, reason, item.payload)]


def _command(item: model.InboxItem, fields: dict[str, Any]) -> Command:
    if item.kind not in (model.CANCEL, model.MOVE, model.REQUEUE, model.REPLAY, model.ACCEPT_CLOCK):
        raise Malformed(f"unknown kind {item.kind!r}; a newer celery-wheel may have written it")
    task_ids, eta_ms = _names(fields, LISTS.get(item.kind, "task_ids")), fields.get("eta_ms")
    if item.kind == model.REPLAY and not all(map(_ROW, task_ids)):
        raise Malformed(f"rows must be numbers in decimal digits, got {task_ids!r:.60}")
    if eta_ms is not None:
        _check_instant("eta_ms", eta_ms)
    for_good = fields.get("for_good", False) is True
    return Command(item.kind, task_ids, eta_ms, for_good=for_good, **_about(item, fields))


def _completion(item: model.InboxItem, fields: dict[str, Any]) -> Completion:
    keys, how = _names(fields, "keys"), fields.get("how", "cancel")
    if how not in ("cancel", "run"):
        raise Malformed(f'how must be "cancel" or "run", got {how!r:.60}')
    return Completion(keys, how == "run", **_about(item, fields))


def _schedule_command(item: model.InboxItem, fields: dict[str, Any]) -> ScheduleCommand:
    do, definitions = fields["do"], dict[str, Any]()
    if do not in (*DEFINING, "delete", "pause", "resume", "trigger", "backfill"):
        raise Malformed(f"do must be a change of a schedule; a newer celery-wheel may have written it; got {do!r:.60}")
    if do in DEFINING and "definition" not in fields:
        definitions = dict(fields["definitions"])
        fields["names"] = list(definitions)
    times = fields.get("from_ms"), fields.get("upto_ms"), fields.get("every_ms", 0)
    names, overlap = _names(fields, "names"), fields.get("overlap")
    if do in DEFINING and not definitions:
        definitions = dict.fromkeys(names, fields["definition"])  # which all names share
    if do == "backfill":
        if overlap not in (None, *BACKFILL_OVERLAPS):
            raise Malformed(f"overlap must be one of {', '.join(BACKFILL_OVERLAPS)}, got {overlap!r:.60}")
        for name, at_ms in zip(("from_ms", "upto_ms", "every_ms"), times, strict=True):
            _check_instant(name, at_ms)
    source = check_text("source", fields.get("source", "api"))
    after_ms, edited_ms = (_instants(fields, name) for name in ("after_ms", "edited_ms"))
    about = {**_about(item, fields), "results": dict(fields.get("results") or {}), "payload": item.payload}
    return ScheduleCommand(do, names, definitions, source, *times, overlap, after_ms, edited_ms, **about)


def _instants(fields: dict[str, Any], name: str) -> dict[str, int]:
    found = dict(fields.get(name) or {})
    for at_ms in found.values():
        _check_instant(name, at_ms)
    return found


def _erasure(item: model.InboxItem, fields: dict[str, Any]) -> Erasure:
    [digest], by, value = _names(fields, "digests"), fields["by"], check_text("value", fields["value"], any_length=True)
    schedules, progress = tuple(fields.get("schedules", ())), fields.get("progress")
    if by not in CRITERIA:
        raise Malformed(f"by must be one of {', '.join(CRITERIA)}, got {by!r:.60}")
    if not all(map(is_run_id, schedules)):
        raise Malformed(f"schedules must be ids of schedules, got {schedules!r:.60}")
    known = None if progress is None else ErasureProgress(**progress)
    return Erasure(digest, ErasureCriterion(by, value, schedules), item.payload, known, **_about(item, fields))


def _bulk(item: model.InboxItem, fields: dict[str, Any]) -> BulkCommand:
    [action], do, request = _names(fields, "bulks"), fields["do"], None
    if do not in DOINGS:
        raise Malformed(f"do must be one of {', '.join(DOINGS)}, got {do!r:.60}")
    if do == "begin":
        request = BulkRequest.of_command({**fields, "bulks": [str(uuid.UUID(action))]})
        if request.verb not in VERBS or (request.verb == model.REQUEUE) != (request.outcome in model.REQUEUABLE):
            raise Malformed(f"verb must be one of {', '.join(VERBS)}, got {request.verb!r:.60} {request.outcome!r:.60}")
        for name, value in asdict(request.criteria).items():
            if value is not None and (type(value) is int) != (name in ("shard", "from_ms", "to_ms")):
                raise Malformed(f"{name} must be of its type, got {value!r:.60}")
        if request.eta_ms is not None:
            _check_instant("eta_ms", request.eta_ms)
    return BulkCommand(do, action, request, **_about(item, fields))


def _run_ended(item_id: int | None, fields: dict[str, Any]) -> RunEnded:
    of_slot = "slot" in fields
    run = fields["slot" if of_slot else "run"]
    if not is_run_id(run):
        raise Malformed(f"run must be the number of a row, got {run!r:.60}")
    return RunEnded(item_id, run, of_slot)


def run_ended(message: model.Message) -> RunEnded | model.Unreadable:
    """Return the end of a run that a worker has sent to the wheel queue."""
    try:
        return _run_ended(None, json.loads(message.body))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = f"the end of a run cannot be read: {error_text(error)}"
        return model.Unreadable(message.envelope_id, reason, message.body)


def _check_instant(name: str, value: Any) -> None:
    if type(value) is not int or not 0 <= value < END_OF_TIME_MS:
        raise Malformed(f"{name} must be milliseconds from 1970 to the end of 9998, got {value!r:.60}")


def _names(fields: dict[str, Any], list_name: str) -> list[str]:
    names = fields[list_name]
    if type(names) is not list or not 0 < len(names) <= MAX_NAMES:
        raise Malformed(f"{list_name} must be a list of 1 to {MAX_NAMES:,}, got {names!r:.60}")
    for name in names:
        check_text(list_name, name, any_length=True)
    return list(dict.fromkeys(names))


def _about(item: model.InboxItem, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the values of ``Asked``, but for the head of the audit log."""
    texts, answer_to = {"actor": fields.get("actor", ""), "reason": fields.get("reason", "")}, fields.get("id")
    for name, text in texts.items():
        check_text(name, text, any_length=True)
    return {"item_id": item.id, **texts, "answer_to": None if answer_to is None else str(uuid.UUID(answer_to))}


def _gate_command(item: model.InboxItem, fields: dict[str, Any]) -> Command:
    gates, per_ms = _names(fields, "gates"), fields.get("per_ms")
    for gate in gates:
        if gate != "all:" and not gate.startswith(("queue:", "task:", "group:")):
            raise Malformed(f"gates must be all:, queue:…, task:… or group:…, got {gate!r:.60}")
    if per_ms is not None and (type(per_ms) is not int or not 0 < per_ms < END_OF_TIME_MS):
        raise Malformed(f"per_ms must be a time in milliseconds, got {per_ms!r:.60}")
    return Command(item.kind, gates, per_ms=per_ms, **_about(item, fields))


def _limit_command(item: model.InboxItem, fields: dict[str, Any]) -> Command:
    groups, limits = _names(fields, "groups"), fields["limits"]
    for group in groups:
        check_group("groups", group)
    if limits is not None:
        limits = {name: limits.get(name) for name in LIMITS}
        for name, value in limits.items():
            if value is not None and (type(value) is not int or not 0 < value <= LIMITS[name]):
                raise Malformed(f"{name} must be from 1 to {LIMITS[name]:,}, got {value!r:.60}")
        if (limits["rate_count"] is None) != (limits["rate_per_ms"] is None):
            raise Malformed(f"limits must have both rate_count and rate_per_ms, or none, got {limits!r:.200}")
        if not any(limits.values()):
            raise Malformed("limits must have one at least, got none")
    return Command(item.kind, groups, limits=limits, **_about(item, fields))


_PARSERS: dict[str, Callable[[model.InboxItem, dict[str, Any]], AnyCommand]] = {
    model.COMPLETE: _completion,
    **dict.fromkeys((model.PAUSE, model.RESUME), _gate_command),
    model.LIMIT: _limit_command,
    SCHEDULE: _schedule_command,
    model.ERASE: _erasure,
    model.BULK: _bulk,
}


#: The asker's clock may differ from the holder's by so much; otherwise the holder's time counts.
MAX_SKEW_MS = 60_000

#: The longest text of arguments.
MAX_DETAILS = 10_000

#: Arguments of commands that the audit log has; none is a value of a task.
_DETAILS = (
    "eta_ms",
    "per_ms",
    "how",
    "limits",
    "source",
    "from_ms",
    "upto_ms",
    "every_ms",
    "overlap",
    "by",
    "verb",
    "criteria",
)


def audit_head(item: model.InboxItem, fields: dict[str, Any], derived_id: DerivedId) -> AuditHead:
    """Return the head of a command: all but the request, its origin and its time is read from the command itself.

    A command without a head is of an unknown origin. Raises ValueError, TypeError or LookupError for a wrong one.
    """
    given = fields.get("audit") or {"origin": UNKNOWN_ORIGIN}
    details = json.dumps({name: fields[name] for name in _DETAILS if fields.get(name)})
    at_ms = given.get("at_ms", 0)
    if type(at_ms) is not int or not 0 <= at_ms < END_OF_TIME_MS or len(details) > MAX_DETAILS:
        raise Malformed(f"audit must have an instant and short details, got {given!r:.100}")
    if given["origin"] not in ORIGINS:
        raise Malformed(f"origin must be one of {', '.join(ORIGINS)}, got {given['origin']!r:.60}")
    request = given.get("request") or derived_id(f"audit {item.id} {item.payload.hex()}")
    return AuditHead(
        str(uuid.UUID(request)),
        at_ms,
        given["origin"],
        _action(item.kind, fields),
        details,
        str(uuid.UUID(fields["bulks"][0])) if item.kind == model.BULK else None,
        given.get("whole", True) is True,
    )


def _action(kind: str, fields: Mapping[str, Any]) -> str:
    if kind == SCHEDULE:
        return f"schedule_{fields['do']}"
    if kind == model.MOVE:
        return "run_now" if fields.get("eta_ms") is None else "reschedule"
    if kind == model.BULK:
        return f"bulk_{fields['do']}"
    if kind == model.LIMIT:
        return "clear_limits" if fields["limits"] is None else "set_limits"
    return kind


def audit_entries(command: AnyCommand, results: Mapping[str, Any], now_ms: int) -> list[AuditEntry]:
    """Return the entry of a command, or none: where it is not recorded, and where this shard knows none of its names.

    An entry of a machine has only the names that the command has changed: machines repeat their commands.
    """
    head = command.audit
    if head is None:
        return []
    kept = {name: _shortened(result) for name, result in results.items() if head.is_whole or result != "unknown"}
    if head.origin in MACHINES:
        kept = {name: result for name, result in kept.items() if _is_change(command, result)}
    if not kept:
        return []
    at_ms = head.at_ms if abs(head.at_ms - now_ms) <= MAX_SKEW_MS else now_ms
    about = head.origin, command.actor, head.action, command.reason, head.details, head.bulk
    return [AuditEntry(head.request, at_ms, *about, json.dumps(kept))]


def _is_change(command: AnyCommand, result: Any) -> bool:
    if isinstance(result, Mapping):  # of a schedule, or the counts of a key
        return result["result"] == "done" if "result" in result else any(result.values())
    if isinstance(command, Command) and command.kind == model.CANCEL:  # a tombstone is a change
        return result in ("done", "unknown") or (result == "too_late" and command.for_good)
    return result in ("done", "accepted")


def _shortened(result: Any) -> Any:
    """Return a result with counts in the place of its lists."""
    if not isinstance(result, Mapping):
        return result
    return {name: len(value) if isinstance(value, list) else value for name, value in result.items()}
