"""The audit log's part of a command: read with care, written only for a person's command that has results."""

from __future__ import annotations

import json
from typing import Any

import pytest

from celery_wheel.engine.intake.inbox import MAX_SKEW_MS, Command, audit_entries, parse
from celery_wheel.store.model import InboxItem, Unreadable
from celery_wheel.values.ids import uuid7

NOW = 1_800_000_000_000


def command(audit: Any, **fields: Any) -> Any:
    given = {"task_ids": ["a", "b"], "actor": "anna", "reason": "twice", "audit": audit, **fields}
    found = parse(InboxItem(1, "cancel", json.dumps(given).encode()), decode=lambda raw: None, derived_id=str)  # type: ignore[arg-type,return-value]
    return found[0] if isinstance(found, list) else found


def head(**parts: Any) -> dict[str, Any]:
    return {"request": uuid7(), "at_ms": NOW, "origin": "cli", "action": "cancel", **parts}


def test_a_persons_command_leaves_an_entry() -> None:
    given = head(details={"eta_ms": 5}, bulk=uuid7())
    (one,) = audit_entries(command(given), {"a": "done", "b": {"result": "done", "task_ids": ["x", "y"]}}, NOW)
    assert (one.request, one.bulk, one.at_ms) == (given["request"], given["bulk"], NOW)
    assert (one.origin, one.actor, one.action, one.reason) == ("cli", "anna", "cancel", "twice")
    assert json.loads(one.details) == {"eta_ms": 5}
    assert json.loads(one.results) == {"a": "done", "b": {"result": "done", "task_ids": 2}}


def test_a_programs_command_leaves_none() -> None:
    assert audit_entries(command(None), {"a": "done"}, NOW) == []
    assert audit_entries(Command(1, "cancel", ["a"], "audit", '"audit"'), {"a": "done"}, NOW) == []


def test_a_shard_that_knows_none_of_the_names_leaves_none() -> None:
    results = {"a": "unknown", "b": "unknown"}
    assert audit_entries(command(head(whole=False)), results, NOW) == []
    (one,) = audit_entries(command(head(whole=False)), {**results, "b": "done"}, NOW)
    assert json.loads(one.results) == {"b": "done"}
    (one,) = audit_entries(command(head()), results, NOW)
    assert json.loads(one.results) == results


def test_the_holders_time_counts_where_the_askers_clock_is_wrong() -> None:
    for skew, at_ms in ((MAX_SKEW_MS, NOW), (MAX_SKEW_MS + 1, NOW + MAX_SKEW_MS + 1)):
        (one,) = audit_entries(command(head()), {"a": "done"}, NOW + skew)
        assert one.at_ms == at_ms


@pytest.mark.parametrize(
    "wrong",
    [
        {"request": "7"},
        {"at_ms": "soon"},
        {"at_ms": -1},
        {"origin": ""},
        {"origin": "a\0"},
        {"action": None},
        {"details": "x"},
        {"details": {"a": "x" * 20_000}},
        {"bulk": "7"},
    ],
)
def test_a_wrong_part_makes_the_command_unreadable(wrong: dict[str, Any]) -> None:
    found = command(head(**wrong))
    assert isinstance(found, Unreadable)
