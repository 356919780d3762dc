"""The shard of a schedule: that of the group of its occurrences, or else that of its name.

::

    create   ──► shard of the name: its holder alone creates schedules of the name, so a name has one at most
    the first occurrence is made: it is of a group ──► the schedule moves to the shard of the group, which makes it
    update, pause, trigger …  ──► shard of the name ──► the inbox of the shard in which the schedule is

The group is known when a message is rendered: it may be of the definition, of a route or of ``wheel_group``. So a
schedule also moves after a change of these. The instant that shows it is made in the new shard; runs and pending
occurrences stay in the former one. Senders know only the name. A command whose names are in several shards goes from
one to the next, with the results so far; the last holder answers it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from celery_wheel.engine.intake.inbox import ScheduleCommand, audit_entries
from celery_wheel.engine.round import Context
from celery_wheel.store.model import Answer, Change, PassedOn
from celery_wheel.store.schedule_model import Schedule


def locate(ctx: Context, command: ScheduleCommand) -> tuple[dict[str, Schedule], dict[str, int]]:
    """Return the command's schedules that are in this shard, and the shards of the names that belong to another."""
    stored = {one.name: (shard, one) for shard, one in ctx.store.schedules_named(command.names)}
    here = {name: one for name, (shard, one) in stored.items() if shard == ctx.shard}
    shards = {name: stored[name][0] if name in stored else ctx.shard_of(name) for name in command.names}
    return here, {name: shard for name, shard in shards.items() if shard != ctx.shard}


def conclude(
    change: Change, command: ScheduleCommand, results: Mapping[str, Any], elsewhere: Mapping[str, int], now_ms: int
) -> None:
    """Add the end of a command to its change: the answer, or the rest of it for another shard."""
    change.audits += audit_entries(command, results, now_ms)
    found = {**command.results, **results}
    if elsewhere:
        shard, payload = next(iter(elsewhere.values())), command.payload
        if results:  # else the item stays as its sender wrote it, who may withdraw it
            payload = _rest(payload, elsewhere, found)
        change.passed_on.append(PassedOn(command.item_id, shard, payload))
        return
    change.inbox.append(command.item_id)
    if command.answer_to is not None:
        change.answers.append(Answer(command.answer_to, found, now_ms))


def _rest(payload: bytes, names: Mapping[str, int], results: Mapping[str, Any]) -> bytes:
    fields = json.loads(payload)
    if "definitions" in fields:
        fields["definitions"] = {name: fields["definitions"][name] for name in names}
    return json.dumps({**fields, "names": list(names), "results": results}).encode()
