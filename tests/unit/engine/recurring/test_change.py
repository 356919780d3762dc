"""Commands on schedules: each with its revision, its answer and the rows that it withdraws.

A schedule of another store goes on where it stopped there: no instant before its next one is made again.
"""

import json
from dataclasses import asdict
from typing import Any
from unittest import mock

import pytest

from celery_wheel.engine.state.shard import ShardState
from celery_wheel.errors import RecurrenceError
from celery_wheel.recurring.specs import Interval
from celery_wheel.store.model import Row
from tests.unit.engine.conftest import START_MS
from tests.unit.engine.recurring.conftest import ScheduleRig, definition

DONE = {"report": {"result": "done"}}
UNKNOWN = {"report": {"result": "unknown"}}
ALREADY = {"report": {"result": "already"}}


def whats(rig: ScheduleRig) -> list[tuple[int, str]]:
    return [(one.number, one.what) for one in rig.data.revisions]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"task": "app.report"}, "recurrence: the document must be"),
        (definition(0), "recurrence: spec.every_ms must be at least 1 ms"),
        (definition(overlap="never"), "overlap must be one of allow, skip, queue_one, cancel_running"),
        (definition(catch_up="all"), "catch_up_ms must be"),
        (definition(kwarg={}), "kwarg must be a field of a definition (did you mean kwargs?)"),
        (definition(args={}), "args must be a JSON value like []"),
        ("every minute", "the definition must be an object"),
    ],
)
def test_an_invalid_definition_is_refused(rig: ScheduleRig, document: Any, reason: str) -> None:
    answer = rig.change("create", {"report": document, "other": definition()})
    assert answer["report"]["result"] == "refused"
    assert answer["report"]["reason"].startswith(reason)
    assert answer["other"] == {"result": "done"}
    assert [one.name for one in rig.data.schedules.values()] == ["other"]


@pytest.mark.parametrize("do", ["create", "update"])
def test_a_change_that_meets_an_unexpected_error_is_refused_alone(
    rig: ScheduleRig, monkeypatch: pytest.MonkeyPatch, do: str, caplog: pytest.LogCaptureFixture
) -> None:
    def next_after(self: Interval, at_ms: int) -> int:
        if self.every_ms == 7_000:
            raise ZeroDivisionError("a bug")
        return real(self, at_ms)

    real = Interval.next_after
    if do == "update":
        rig.change("create", {"report": definition(), "other": definition()})
    monkeypatch.setattr(Interval, "next_after", next_after)
    answer = rig.change(do, {"report": definition(7_000), "other": definition(2_000)})
    assert answer["report"] == {"result": "refused", "reason": "an unexpected error: ZeroDivisionError: a bug"}
    assert answer["other"] == {"result": "done"}
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("schedule report was not changed")


@pytest.mark.parametrize("do", ["delete", "pause", "resume", "trigger"])
def test_a_name_without_a_schedule_is_unknown(rig: ScheduleRig, do: str) -> None:
    assert rig.change(do, ["report"]) == UNKNOWN


def test_an_update_withdraws_the_old_occurrence_and_makes_the_new_one(rig: ScheduleRig) -> None:
    rig.create(every_ms=1_000)
    rig.tick(1_500)
    assert rig.made() == [1_000, 2_000, 3_000]
    assert rig.change("update", {"report": definition(700)}) == DONE
    rig.tick(2_000)
    assert rig.ran() == [1_000, 2_100, 2_800, 3_500]
    assert rig.outcomes() == ["cancelled", "cancelled"]
    assert rig.schedule().made == 1 + 5
    assert whats(rig) == [(1, "created"), (2, "changed")]
    before = json.loads(rig.data.revisions[1].before)
    assert json.loads(before["definition"])["recurrence"]["spec"]["every_ms"] == 1_000


@pytest.mark.parametrize(("edited_ms", "first_ms"), [(1_100, 1_200), (400, 1_200), (9_000, 1_800)])
def test_an_update_goes_on_from_when_the_edit_was_seen(rig: ScheduleRig, edited_ms: int, first_ms: int) -> None:
    """Also where later instants were made ahead, and are withdrawn; but after the last instant that has come."""
    rig.create(every_ms=1_000)
    rig.tick(1_500)
    assert rig.schedule().last_ms == START_MS + 3_000
    assert rig.change("update", {"report": definition(300)}, edited_ms={"report": START_MS + edited_ms}) == DONE
    assert rig.schedule().made == 1 + len(range(first_ms, 3_500, 300))


def test_an_update_of_a_schedule_whose_only_occurrence_is_withdrawn_begins_as_a_new_one(rig: ScheduleRig) -> None:
    rig.create(every_ms=2_000)
    rig.tick(500)
    assert rig.schedule().made == 1
    times = {"after_ms": {"report": START_MS + 100}, "edited_ms": {"report": START_MS + 400}}
    assert rig.change("update", {"report": definition(150)}, **times) == DONE
    assert rig.schedule().made == len(range(150, 2_501, 150))


def test_names_may_share_a_definition(rig: ScheduleRig) -> None:
    rig.change("create", {"report": definition(args=[1]), "other": definition(args=[2])})
    names = ["report", "other", "unknown"]
    new = {"recurrence": definition(700)["recurrence"]}
    answer = rig.change("patch", names, definition=new)
    assert [answer[name]["result"] for name in names] == ["done", "done", "unknown"]
    found = [json.loads(rig.schedule(name).definition) for name in names[:2]]
    assert found == [definition(700, args=[1]), definition(700, args=[2])]
    rig.tick(1_500)
    assert rig.ran("other") == [700, 1_400]


@pytest.mark.parametrize("kind", ["broken", "base"])
def test_a_patch_of_an_entry_that_does_not_run_keeps_the_reason(rig: ScheduleRig, kind: str) -> None:
    rig.change("create", {"report": {"task": "app.report", kind: "its own reason"}}, source="beat")
    assert rig.change("patch", {"report": {"task": "app.other"}}) == DONE
    found = rig.schedule()
    assert json.loads(found.definition) == {"task": "app.other", kind: "its own reason"}
    assert (found.broken, found.note, found.next_ms) == (kind == "broken", "its own reason", None)


@pytest.mark.parametrize("do", ["pause", "update", "delete"])
def test_a_damaged_row_that_is_withdrawn_ends_no_round(
    rig: ScheduleRig, monkeypatch: pytest.MonkeyPatch, do: str
) -> None:
    def parts(row: Row) -> Any:
        raise ValueError("its bytes in the store are damaged")

    rig.create()
    rig.tick(500)
    monkeypatch.setattr(Row, "parts", parts)
    assert rig.change(do, {"report": definition(700)} if do == "update" else ["report"]) == DONE
    assert rig.outcomes() == ["cancelled", "cancelled"]


def test_an_update_may_keep_the_instant(rig: ScheduleRig) -> None:
    rig.create(every_ms=1_000)
    rig.change("update", {"report": definition(1_000, args=[1])})
    rig.tick(1_000)
    assert rig.ran() == [1_000]
    assert rig.outcomes() == ["cancelled", "cancelled"]


def test_an_update_to_the_same_definition_changes_nothing(rig: ScheduleRig) -> None:
    rig.create()
    assert rig.change("update", {"report": definition()}) == ALREADY
    assert rig.schedule().revision == 1
    assert rig.outcomes() == []


def test_an_update_counts_withdrawn_occurrences_to_no_limit(rig: ScheduleRig) -> None:
    rig.create(recurrence={"times": 2})
    rig.change("update", {"report": definition(recurrence={"times": 2}, args=[1])})
    rig.tick(4_000)
    assert rig.ran() == [1_000, 2_000]


def test_rows_that_may_have_been_published_are_named(rig: ScheduleRig) -> None:
    rig.create()
    rig.run("prefetch", after_ms=1_000)
    rig.stopped_at("dispatch", "guarded")
    assert rig.change("delete", ["report"]) == {"report": {"result": "done", "too_late": [START_MS + 1_000]}}
    rig.tick(3_000)
    assert rig.ran() == [1_000]


def test_a_paused_schedule_makes_nothing_and_a_resume_accounts_for_it(rig: ScheduleRig) -> None:
    rig.create()
    rig.tick(1_500)
    assert rig.change("pause", ["report"]) == DONE
    assert rig.change("pause", ["report"]) == ALREADY
    assert (rig.next_ms(), rig.schedule().note) == (None, "test")
    rig.tick(3_000)
    assert rig.ran() == [1_000]
    assert rig.change("resume", ["report"]) == DONE
    assert rig.change("resume", ["report"]) == ALREADY
    assert rig.skips() == [(2_000, 4_000, 3, "paused")]
    rig.tick(1_000)
    assert rig.ran() == [1_000, 5_000]
    assert rig.schedule().note == ""


def test_a_pause_withdraws_late_occurrences_and_says_so(rig: ScheduleRig) -> None:
    rig.put("pause", gates=["queue:celery"])
    rig.create()
    rig.tick(2_500)
    assert rig.change("pause", ["report"]) == DONE
    assert rig.skips() == [(1_000, 1_000, 1, "paused"), (2_000, 2_000, 1, "paused")]
    rig.put("resume", gates=["queue:celery"])
    rig.tick(2_000)
    assert rig.ran() == []


def test_a_pause_for_a_moment_loses_no_instant(rig: ScheduleRig) -> None:
    rig.create()
    rig.change("pause", ["report"])
    rig.change("resume", ["report"])
    rig.tick(2_000)
    assert rig.ran() == [1_000, 2_000]
    assert rig.skips() == []


def test_an_update_accounts_for_a_paused_schedule(rig: ScheduleRig) -> None:
    rig.create()
    rig.change("pause", ["report"])
    rig.tick(3_000)
    assert rig.change("update", {"report": definition(2_500)}) == DONE
    assert rig.skips() == [(1_000, 3_000, 3, "paused")]
    rig.tick(2_000)
    assert rig.change("resume", ["report"]) == DONE
    assert rig.skips()[1:] == [(5_000, 5_000, 1, "paused")]
    rig.tick(2_500)
    assert rig.ran() == [7_500]


def test_a_deleted_schedule_leaves_its_revisions(rig: ScheduleRig) -> None:
    rig.create()
    rig.tick(1_000)
    assert rig.change("delete", ["report"]) == DONE
    rig.tick(3_000)
    assert rig.ran() == [1_000]
    assert whats(rig) == [(1, "created"), (2, "deleted")]
    rig.create()
    rig.tick(1_000)
    assert rig.ran() == [1_000, 5_000]


def test_an_update_repairs_a_broken_schedule(rig: ScheduleRig) -> None:
    rig.create(every_ms=5_000)
    for one in rig.data.schedules.values():
        one.definition = "{"
    rig.tick(4_000)
    assert rig.schedule().broken
    assert rig.change("resume", ["report"])["report"]["result"] == "refused"
    assert rig.change("update", {"report": definition(1_000)}) == DONE
    assert not rig.schedule().broken
    rig.tick(1_000)
    assert rig.ran() == [5_000]


def break_(rig: ScheduleRig, ms: int) -> None:
    """Create a schedule whose messages cannot be made for a time, after its first two rows."""
    rig.create(every_ms=1_000)
    rig.renderer.fault = mock.Mock(side_effect=RecurrenceError("no such task"))
    rig.tick(ms)
    assert rig.schedule().broken
    rig.renderer.fault = lambda _: None


def test_an_update_accounts_for_the_instants_since_a_schedule_broke(rig: ScheduleRig) -> None:
    break_(rig, 5_500)
    assert rig.ran() == [1_000, 2_000]  # they were rows already
    assert rig.change("update", {"report": definition(700)}) == DONE
    assert rig.skips() == [(3_000, 5_000, 3, "missed")]
    rig.tick(500)
    assert rig.ran() == [1_000, 2_000, 5_600]


def test_a_resume_after_an_error_makes_no_row_twice(rig: ScheduleRig) -> None:
    """The schedule broke at 3,000 ms, when the rows of its earlier instants existed."""
    break_(rig, 1_000)
    assert rig.made() == [1_000, 2_000]
    assert rig.change("resume", ["report"]) == DONE
    rig.tick(2_000)
    assert rig.ran() == [1_000, 2_000, 3_000]
    assert rig.skips() == []


def test_a_pause_after_an_error_accounts_for_the_rows_that_it_withdraws(rig: ScheduleRig) -> None:
    break_(rig, 1_000)
    assert rig.change("pause", ["report"]) == DONE
    rig.tick(1_500)
    assert rig.change("resume", ["report"]) == DONE
    assert rig.skips() == [(2_000, 2_000, 1, "paused")]
    rig.tick(500)
    assert rig.ran() == [1_000, 3_000]


def test_a_change_that_has_to_wait_is_overtaken_by_no_later_one(rig: ScheduleRig) -> None:
    """A row may move to another lane: the pause stays in the inbox, and so does the resume behind it."""
    rig.create(every_ms=60_000)
    rig.create("other", every_ms=60_000)
    for do, name in (("pause", "report"), ("resume", "report"), ("pause", "other")):
        rig.put("schedule", do=do, names=[name])
    with mock.patch.object(ShardState, "may_be_diverted", side_effect=[True, False, False, False]):
        rig.run("ingest")
        assert [rig.schedule(name).paused for name in ("report", "other")] == [False, True]
        rig.run("ingest")
    assert not rig.schedule().paused
    assert [one.what for one in rig.data.revisions if one.name == "report"] == ["created", "paused", "resumed"]


def test_a_trigger_runs_now_also_while_the_schedule_is_paused(rig: ScheduleRig) -> None:
    rig.create(every_ms=60_000)
    rig.change("pause", ["report"])
    rig.pass_time(500)
    answer = rig.change("trigger", ["report"])
    assert answer["report"]["result"] == "done"
    rig.run()
    assert rig.pushed == answer["report"]["task_ids"]
    assert rig.ran() == [500]
    assert rig.schedule().made == 0


def test_a_trigger_is_refused_where_no_schedule_runs(rig: ScheduleRig) -> None:
    rig.create()
    rig.engine.ctx.renderer = None
    assert rig.change("trigger", ["report"])["report"]["result"] == "refused"


def test_a_pause_leaves_a_requested_run(rig: ScheduleRig) -> None:
    rig.put("pause", gates=["queue:celery"])
    rig.create()
    rig.change("trigger", ["report"])
    rig.change("pause", ["report"])
    rig.put("resume", gates=["queue:celery"])
    rig.tick(1_000)
    assert rig.ran() == [0]
    assert rig.skips() == []


def test_a_trigger_behind_a_change_waits_for_it(rig: ScheduleRig) -> None:
    numbers = [rig.put("schedule", do="create", definitions={"report": definition(60_000)})]
    numbers += [rig.put("schedule", do=do, names=["report"]) for do in ("trigger", "delete", "trigger")]
    rig.run("ingest", rounds=4)
    answers = [rig.store.answers([n])[n]["report"]["result"] for n in numbers]
    assert answers == ["done", "done", "done", "unknown"]


def test_a_backfill_runs_the_instants_of_a_time(rig: ScheduleRig) -> None:
    rig.create(every_ms=1_000)
    rig.change("pause", ["report"])
    rig.tick(5_000)
    answer = rig.change("backfill", ["report"], from_ms=START_MS + 2_000, upto_ms=START_MS + 3_500)
    assert len(answer["report"]["task_ids"]) == 2
    rig.run()
    assert rig.ran() == [2_000, 3_000]


def test_a_backfill_reaches_no_instant_that_the_schedule_will_make(rig: ScheduleRig) -> None:
    rig.create(every_ms=1_000)
    rig.tick(1_500)
    rig.change("backfill", ["report"], from_ms=START_MS + 1, upto_ms=START_MS + 10**6)
    rig.tick(1_500)
    assert rig.ran() == [1_000, 1_000, 2_000, 3_000]


@pytest.mark.parametrize(("from_ms", "upto_ms"), [(START_MS + 2_000, START_MS + 10**6), (START_MS + 1, START_MS + 2)])
def test_a_backfill_without_a_past_instant_is_refused(rig: ScheduleRig, from_ms: int, upto_ms: int) -> None:
    rig.create(every_ms=1_000)
    rig.tick(1_500)
    answer = rig.change("backfill", ["report"], from_ms=from_ms, upto_ms=upto_ms)["report"]
    assert answer["result"] == "refused"
    assert answer["reason"].startswith("there is no instant to run in this time, and nothing was done; a backfill runs")


def test_a_backfill_of_too_many_instants_is_refused(rig: ScheduleRig) -> None:
    rig.create(every_ms=1_000)
    answer = rig.change("backfill", ["report"], from_ms=0, upto_ms=START_MS)
    assert answer["report"]["result"] == "refused"
    assert "at most 1,000 instants" in answer["report"]["reason"]


def document(every_ms: int = 1_000, revisions: list[dict[str, Any]] | None = None, **fields: Any) -> dict[str, Any]:
    text = json.dumps(definition(every_ms, catch_up="none"))
    return {"schedule": {"definition": text, **fields}, "revisions": revisions or []}


def change(number: int, **fields: Any) -> dict[str, Any]:
    values = {"number": number, "what": "changed", "actor": "bob", "reason": "", "at_ms": START_MS - 9, "before": "{}"}
    return {**values, **fields}


def test_a_restored_schedule_goes_on_with_its_next_instant_and_its_count(rig: ScheduleRig) -> None:
    fields = {"next_ms": START_MS + 2_000, "made": 7, "last_ms": START_MS + 1_000, "revision": 2, "source": "code"}
    revisions = [change(1, what="created", before=""), change(2)]
    assert rig.change("restore", {"report": document(revisions=revisions, **fields)}) == DONE
    rig.tick(2_000)
    assert rig.ran() == [2_000]
    found = rig.schedule()
    assert (found.made - len(rig.made()), found.revision, found.source) == (7, 3, "code")
    changes = rig.data.revisions
    assert [(one.number, one.what, one.actor) for one in changes] == [
        (1, "created", "bob"),
        (2, "changed", "bob"),
        (3, "imported", "ann"),
    ]
    assert {one.schedule for one in changes} == {found.id}
    assert json.loads(changes[-1].before)["revision"] == 2


def test_the_catch_up_decides_on_instants_since_then(rig: ScheduleRig) -> None:
    rig.change("restore", {"report": document(next_ms=START_MS - 60_000)})
    rig.tick(1_000)
    assert rig.skips()[0][3] == "missed"
    assert min(rig.ran()) >= -rig.limits.late_ms
    [revision] = rig.data.revisions
    assert (revision.number, revision.what, revision.before, rig.schedule().revision) == (1, "imported", "", 1)


def test_a_paused_schedule_stays_paused_until_it_is_resumed(rig: ScheduleRig) -> None:
    rig.change("restore", {"report": document(paused=True, note="holidays", next_ms=START_MS + 1_000)})
    rig.tick(2_000)
    assert (rig.ran(), rig.schedule().note, rig.next_ms()) == ([], "holidays", None)
    assert rig.change("resume", ["report"]) == DONE
    rig.tick(1_000)
    assert rig.ran() == [3_000]


def test_a_definition_that_this_version_cannot_read_is_broken(rig: ScheduleRig) -> None:
    later = {"schedule": {"definition": '{"recurrence": 1}', "next_ms": START_MS + 5_000}}
    assert rig.change("restore", {"report": later, "other": document(next_ms=START_MS + 1_000)})["report"] == {
        "result": "done"
    }
    rig.tick(1_000)
    found = rig.schedule()
    assert (found.broken, found.next_ms, found.since_ms) == (True, None, START_MS + 4_999)
    assert "recurrence" in found.note or "task" in found.note
    assert rig.ran("other") == [1_000]


def test_an_entry_that_the_base_scheduler_runs_stays_one(rig: ScheduleRig) -> None:
    entry = {"schedule": {"definition": '{"base":"its own is_due","task":"t"}', "note": "its own is_due"}}
    assert rig.change("restore", {"report": entry}) == DONE
    found = rig.schedule()
    assert (found.broken, found.paused, found.next_ms, found.note) == (False, False, None, "its own is_due")


def test_a_name_that_exists_stays_as_it_is(rig: ScheduleRig) -> None:
    before = asdict(rig.create(every_ms=5_000))
    assert rig.change("restore", {"report": document(made=3)}) == {"report": {"result": "already"}}
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
    answer = rig.change("restore", {"report": broken, "other": document(next_ms=START_MS + 1_000)})
    assert answer["report"]["result"] == "refused"
    assert answer["other"] == {"result": "done"}
    assert [one.name for one in rig.data.schedules.values()] == ["other"]
