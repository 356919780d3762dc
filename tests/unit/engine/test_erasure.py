"""Erasures: pending, published and settled tasks; the rows of a group beside others; a crash between two parts."""

from dataclasses import replace
from typing import Any

import pytest

from celery_wheel.engine import erasure
from celery_wheel.engine.round import Round
from celery_wheel.store.erasure_model import ErasureCriterion, digest_of_name, is_digest_of
from celery_wheel.store.model import STOPPED, Unreadable
from tests.unit.engine.conftest import Rig

HOUR = 3_600_000
DIGEST = "erased:00.00"


def put(rig: Rig, by: str, value: str, **more: Any) -> str:
    return rig.put("erase", digests=[DIGEST], by=by, value=value, actor="ann", reason="asked", **more)


def erase(rig: Rig, by: str, value: str, rounds: int = 8, **more: Any) -> dict[str, int] | None:
    number = put(rig, by, value, **more)
    rig.run("ingest", rounds=rounds)
    return answer(rig, number)


def answer(rig: Rig, number: str) -> dict[str, int] | None:
    found = rig.store.answer(number)
    return None if found is None else {kind: count for kind, count in found[DIGEST].items() if count}


def stored(rig: Rig) -> set[str]:
    return {rig.task_id(row_id) for row_id in rig.data.rows}


class TestPendingTasks:
    def test_an_erased_task_is_not_dispatched_and_the_others_are(self, rig: Rig) -> None:
        rig.send_all(["a", "b"], 1_000)
        rig.run()
        assert erase(rig, "task_id", "a") == {"pending": 1}
        assert stored(rig) == {"b"}
        assert rig.pending() == 1
        rig.run(rounds=3, after_ms=2_000)
        assert rig.pushed == ["b"]

    @pytest.mark.parametrize("by", ["key", "group"])
    def test_all_tasks_of_a_key_or_a_group_are_erased(self, rig: Rig, by: str) -> None:
        rig.send_all(["a", "b"], HOUR, **{by: "tenant:1"})
        rig.send("c", HOUR, **{by: "tenant:2"})
        rig.run()
        assert erase(rig, by, "tenant:1") == {"pending": 2}
        assert stored(rig) == {"c"}

    def test_waiting_tasks_of_a_group_leave_their_line_with_its_limits_and_its_pause(self, rig: Rig) -> None:
        rig.ask("limit", groups=["tenant:1"], limits={"concurrency": 1})
        rig.ask("pause", gates=["group:tenant:1"])
        rig.send_all(["a", "b"], 10, group="tenant:1")
        rig.run(rounds=2, after_ms=20)
        rig.run(rounds=2)
        assert [line.waiting for line in rig.store.lines(0)] == [2]
        assert erase(rig, "group", "tenant:1") == {"pending": 2}
        assert not rig.data.rows
        assert not rig.store.gates(0)
        assert not rig.store.limits(0)
        assert rig.state.groups.limit_of("tenant:1") == rig.state.groups.limit_of("tenant:2")
        rig.send("c", 10, group="tenant:1")
        rig.run(rounds=4, after_ms=20)
        assert rig.pushed == ["c"]

    def test_a_message_that_was_sent_before_is_accepted_and_erased_and_a_later_one_stays(self, rig: Rig) -> None:
        rig.send("a", HOUR, key="k")
        number = put(rig, "key", "k")
        rig.run("tend", "ingest")
        rig.send("b", HOUR, key="k")
        rig.run("ingest", rounds=4)
        assert answer(rig, number) == {"pending": 1}
        assert stored(rig) == {"b"}


class TestHistory:
    def test_settled_and_stopped_rows_are_erased_with_their_outcomes(self, rig: Rig) -> None:
        rig.send("a", 10, key="k")
        rig.send("b", HOUR, key="k")
        rig.send("c", 10)
        rig.run()
        rig.run(rounds=2, after_ms=20)
        rig.ask("cancel", task_ids=["b"], reason="Ann moved away", actor="bob")
        assert erase(rig, "key", "k") == {"history": 2}
        assert stored(rig) == {"c"}
        assert not rig.data.outcomes
        assert not rig.data.watches, "the cancelled task is not announced"

    def test_a_task_that_may_be_published_is_erased_once_it_is_settled(self, rig: Rig) -> None:
        rig.send("a", 10)
        rig.run()
        rig.pass_time(20)
        rig.stopped_at("dispatch", "published")
        number = put(rig, "task_id", "a")
        rig.run("ingest", rounds=4)
        assert answer(rig, number) is None
        assert rig.run("ingest") is Round.IDLE, "nothing turns while the row waits"
        rig.take_over()
        rig.run(rounds=4)
        assert answer(rig, number) == {"history": 1}
        assert rig.pushed == ["a"]
        assert not rig.data.rows

    def test_unreadable_bytes_are_erased_by_their_task(self, rig: Rig) -> None:
        rig.send("a", HOUR)
        rig.run()
        rig.server.keys.wheel.append(Unreadable("00000000-0000-7000-8000-00000000ffff", "bad", b"x", ("t", "a")))
        rig.run("ingest")
        assert [one.row.lane for one in rig.data.rows.values()] == [0, STOPPED]
        assert erase(rig, "task_id", "a") == {"pending": 1, "history": 1}

    def test_a_tombstone_loses_its_texts_and_still_stops_its_message(self, rig: Rig) -> None:
        rig.run()
        rig.ask("cancel", task_ids=["a"], reason="Ann moved away", actor="bob")
        assert erase(rig, "task_id", "a") == {}
        [tombstone] = rig.data.tombstones.values()
        assert (tombstone.task_id, tombstone.reason, tombstone.actor) == ("a", "", "")
        rig.send("a", 10)
        rig.run(rounds=3, after_ms=20)
        assert rig.pushed == []


class TestParts:
    def test_other_commands_and_dispatch_go_on_between_the_parts(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(erasure, "ROWS_AT_ONCE", 2)
        rig.send_all([f"t{n}" for n in range(7)], HOUR, key="k")
        rig.send("other", HOUR)
        rig.run()
        number = put(rig, "key", "k")
        rig.run("ingest", rounds=3)
        assert 0 < len(rig.data.rows) < 8
        assert answer(rig, number) is None
        assert rig.ask("cancel", task_ids=["other"]) == {"other": "done"}
        rig.run("ingest", rounds=4)
        assert answer(rig, number) == {"pending": 7}

    def test_the_next_holder_goes_on_with_an_erasure(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(erasure, "ROWS_AT_ONCE", 2)
        rig.send_all([f"t{n}" for n in range(5)], HOUR, key="k")
        rig.run()
        number = put(rig, "key", "k")
        rig.run("ingest", rounds=2)
        rig.stopped_at("ingest", "committed under the history lock")
        rig.take_over()
        rig.run("tend", "ingest", rounds=5)
        assert answer(rig, number) == {"pending": 5}
        assert not rig.data.rows
        assert rig.pending() == 0

    def test_a_withdrawn_erasure_leaves_everything(self, rig: Rig) -> None:
        rig.send("a", 1_000)
        rig.run()
        put(rig, "task_id", "a")
        [(item, found)] = rig.data.inbox.items()
        steps = rig.stopped_at("ingest", "entries found")
        assert rig.store.withdraw(item, (0, "erase", found.payload))
        assert list(steps)[-1] is not Round.FAILED
        rig.run(rounds=3, after_ms=2_000)
        assert rig.pushed == ["a"]


class TestRetention:
    def test_history_of_a_queue_is_kept_for_its_own_time(self, rig: Rig) -> None:
        rig.engine.ctx.limits = replace(rig.limits, retentions={"queue:mail": HOUR})
        rig.send("a", 10, queue="mail", routing_key="mail")
        rig.send("b", 10)
        rig.run()
        rig.run(rounds=2, after_ms=20)
        assert rig.pushed == ["a", "b"]
        rig.run("keep_house", after_ms=HOUR - 1_000)
        assert stored(rig) == {"a", "b"}
        rig.run("tend")
        assert rig.run("keep_house", after_ms=2_000) is Round.BUSY
        assert stored(rig) == {"b"}
        assert rig.run("keep_house") is Round.IDLE, "nothing turns where no history is old"


def test_a_command_that_cannot_be_read_is_rejected_with_its_bytes(rig: Rig) -> None:
    rig.run()
    put(rig, "name", "a")
    rig.run("ingest")
    [one] = rig.data.rows.values()
    assert isinstance(one.message, Unreadable)
    assert "by must be one of task_id, key, group, schedule" in one.message.reason


def test_a_digest_has_its_salt_and_no_part_of_the_name() -> None:
    digest = digest_of_name("tenant:anna")
    assert digest != digest_of_name("tenant:anna")
    assert is_digest_of("tenant:anna", digest)
    assert not is_digest_of("tenant:anne", digest)
    assert not is_digest_of("tenant:anna", "erased:xyz")
    assert "anna" not in digest
    assert ErasureCriterion("group", "a").names == {"a", "group:a"}


def test_the_dictionary_is_replaced_before_the_answer_by_the_next_holder_too(rig: Rig) -> None:
    scrubbed = list[str]()
    rig.send("a", HOUR)
    rig.run()
    rig.store.scrub = lambda: scrubbed.append(str(len(rig.data.rows)))  # type: ignore[method-assign]
    number = put(rig, "task_id", "a")
    rig.run("ingest", rounds=2)
    rig.stopped_at("ingest", "scrubbed")
    assert (scrubbed, answer(rig, number)) == (["0"], None)
    rig.take_over()
    rig.store.scrub = lambda: scrubbed.append("again")  # type: ignore[method-assign]
    rig.run(rounds=6)
    assert (scrubbed, answer(rig, number)) == (["0", "again"], {"pending": 1})
