"""A schedule of another store goes on where it stopped there: no instant before its next one is made again."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from tests.unit.engine.conftest import START_MS
from tests.unit.engine.recurring.conftest import ScheduleRig, definition

DONE = {"report": {"result": "done"}}


def document(every_ms: int = 1_000, revisions: list[dict[str, Any]] | None = None, **fields: Any) -> dict[str, Any]:
    text = json.dumps(definition(every_ms, catch_up="none"))
    return {"schedule": {"definition": text, **fields}, "revisions": revisions or []}


def change(number: int, **fields: Any) -> dict[str, Any]:
    values = {"number": number, "what": "changed", "actor": "bob", "reason": "", "at_ms": START_MS - 9, "before": "{}"}
    return {**values, **fields}


def test_a_restored_schedule_goes_on_with_its_next_instant_and_its_count(rig: ScheduleRig) -> None:
    fields = {"next_ms": START_MS + 2_000, "made": 7, "last_ms": START_MS + 1_000, "revision": 2, "source": "code"}
    revisions = [change(1, what="created", before=""), change(2)]
    assert rig.ask("restore", {"report": document(revisions=revisions, **fields)}) == DONE
    rig.tick(2_000)
    assert rig.ran() == [2_000]
    found = rig.schedule()
    assert (found.made - len(rig.made()), found.revision, found.source) == (7, 3, "code")
    changes = rig.disk.shard(0).revisions
    assert [(one.number, one.what, one.actor) for one in changes] == [
        (1, "created", "bob"),
        (2, "changed", "bob"),
        (3, "imported", "ann"),
    ]
    assert {one.schedule for one in changes} == {found.id}
    assert json.loads(changes[-1].before)["revision"] == 2


def test_the_catch_up_decides_on_instants_since_then(rig: ScheduleRig) -> None:
    rig.ask("restore", {"report": document(next_ms=START_MS - 60_000)})
    rig.tick(1_000)
    assert rig.skips()[0][3] == "missed"
    assert min(rig.ran()) >= -rig.limits.late_ms


def test_a_schedule_without_earlier_changes_begins_with_the_import(rig: ScheduleRig) -> None:
    rig.ask("restore", {"report": document()})
    [revision] = rig.disk.shard(0).revisions
    assert (revision.number, revision.what, revision.before, rig.schedule().revision) == (1, "imported", "", 1)


def test_a_paused_schedule_stays_paused_until_it_is_resumed(rig: ScheduleRig) -> None:
    rig.ask("restore", {"report": document(paused=True, note="holidays", next_ms=START_MS + 1_000)})
    rig.tick(2_000)
    assert (rig.ran(), rig.schedule().note, rig.next_ms()) == ([], "holidays", None)
    assert rig.ask("resume", ["report"]) == DONE
    rig.tick(1_000)
    assert rig.ran() == [3_000]


def test_a_definition_that_this_version_cannot_read_is_broken(rig: ScheduleRig) -> None:
    later = {"schedule": {"definition": '{"recurrence": 1}', "next_ms": START_MS + 5_000}}
    assert rig.ask("restore", {"report": later, "other": document(next_ms=START_MS + 1_000)})["report"] == {
        "result": "done"
    }
    rig.tick(1_000)
    found = rig.schedule()
    assert (found.broken, found.next_ms, found.since_ms) == (True, None, START_MS + 4_999)
    assert "recurrence" in found.note or "task" in found.note
    assert rig.ran("other") == [1_000]


def test_an_entry_that_the_base_scheduler_runs_stays_one(rig: ScheduleRig) -> None:
    entry = {"schedule": {"definition": '{"base":"its own is_due","task":"t"}', "note": "its own is_due"}}
    assert rig.ask("restore", {"report": entry}) == DONE
    found = rig.schedule()
    assert (found.broken, found.paused, found.next_ms, found.note) == (False, False, None, "its own is_due")


def test_a_name_that_exists_stays_as_it_is(rig: ScheduleRig) -> None:
    before = asdict(rig.create(every_ms=5_000))
    assert rig.ask("restore", {"report": document(made=3)}) == {"report": {"result": "already"}}
    assert asdict(rig.schedule()) == before


@pytest.mark.parametrize(
    "broken",
    [
        "text",
        {},
        {"schedule": {}},
        document(name="other"),
        document(definition=1),
        document(source=""),
        document(note="a\0b"),
        document(revision=-1),
        document(revision=2**40),
        document(made=-1),
        document(next_ms=1.5),
        document(last_ms=2**60),
        document(paused=1),
        document(revisions=[change(1), change(1)]),
        document(revisions=[change(2)]),
        document(revisions=[change(1, before=None)]),
        document(revisions=[change(1, reason="\ud800")]),
        document(revisions=[{"number": 1}]),
        {**document(), "revisions": 7},
    ],
)
def test_a_document_that_no_store_accepts_is_refused_alone(rig: ScheduleRig, broken: Any) -> None:
    answer = rig.ask("restore", {"report": broken, "other": document(next_ms=START_MS + 1_000)})
    assert answer["report"]["result"] == "refused"
    assert answer["other"] == {"result": "done"}
    assert [one.name for one in rig.disk.shard(0).schedules.values()] == ["other"]
