"""Delayed tasks through a real Redis, a real ``celery beat -S wheel`` and a real worker."""

import itertools
import json
import re

import celery
import pytest

from tests.integration.interception import wheel_cases as cases
from tests.integration.interception.wheel_matrix import Matrix
from tests.kit.patience import wait_until

WAYS = [f"{app}, {way}" for app in cases.APPS for way in cases.delays()]


@pytest.mark.parametrize("tag", WAYS)
def test_a_delayed_task_runs_once_and_never_early(matrix: Matrix, tag: str) -> None:
    (note,) = matrix.notes[tag]
    assert note["ran_ms"] >= matrix.sent[tag].due_ms
    assert note["id"] == matrix.sent[tag].id
    assert note["args"] == [1]
    assert "wheel" not in (note["headers"] or {})


@pytest.mark.parametrize("call", cases.CALLS)
def test_a_delayed_task_arrives_as_without_a_delay(matrix: Matrix, call: str) -> None:
    delayed, native = matrix.notes[call], matrix.notes[f"native {call}"]
    assert len(delayed) == matrix.expected[call]
    assert sorted(map(cases.comparable, delayed)) == sorted(map(cases.comparable, native))
    assert all(note["ran_ms"] >= matrix.sent[call].due_ms for note in delayed)
    assert all(note["eta"] is None for note in delayed)


@pytest.mark.parametrize("wire", cases.WIRES)
def test_the_bytes_in_the_queue_are_those_of_a_native_message(matrix: Matrix, wire: str) -> None:
    delivery_tag = re.compile(rb'"delivery_tag": "[0-9a-f-]{36}"')
    mine = [raw for raw in matrix.wires if json.loads(raw)["headers"]["id"] == wire]
    one, other = (delivery_tag.sub(b"", raw) for raw in mine)
    assert one == other
    assert len(set(delivery_tag.findall(mine[0] + mine[1]))) == 2


@pytest.mark.parametrize("scene", cases.SCENES)
def test_each_scene_runs_the_expected_number_of_times(matrix: Matrix, scene: str) -> None:
    _, counts = cases.SCENES[scene]
    notes = [note for tag in counts for note in matrix.notes[tag]]
    assert {tag: len(matrix.notes[tag]) for tag in counts} == counts
    if scene != "chord" or celery.VERSION >= (5, 7):  # before, a chord's countdown was only that of its poll
        assert all(note["ran_ms"] >= matrix.sent[scene].due_ms for note in notes)


def test_retries_keep_their_delay_and_their_queue(matrix: Matrix) -> None:
    notes = matrix.notes["retry"]
    assert [note["retries"] for note in notes] == [0, 1, 2]
    assert len({note["id"] for note in notes}) == 1
    assert {note["delivery_info"]["routing_key"] for note in notes} == {"emails"}
    assert min(later["ran_ms"] - earlier["ran_ms"] for earlier, later in itertools.pairwise(notes)) >= 400
    assert matrix.sent["retry"].value == "done"


def test_retries_and_links_inherit_the_group(matrix: Matrix) -> None:
    notes = [*matrix.notes["grouped"], *matrix.notes["grouped link"]]
    assert [(note["wheel_group"], note["retries"]) for note in notes] == [("tenant:42", n) for n in (0, 1, 2, 0)]
    assert matrix.notes["retry"][-1]["wheel_group"] is None


def test_a_retry_with_back_off_waits(matrix: Matrix) -> None:
    first, second = matrix.notes["autoretry"]
    assert second["ran_ms"] - first["ran_ms"] >= 1000


def test_each_step_of_a_chain_waits(matrix: Matrix) -> None:
    first, second = matrix.notes["chain 1"][0], matrix.notes["chain 2"][0]
    assert second["ran_ms"] - first["ran_ms"] >= 600
    assert matrix.sent["chain"].value == 113


def test_results_are_those_of_the_tasks(matrix: Matrix) -> None:
    assert matrix.sent["plain"].value == 2
    assert sorted(matrix.sent["group"].value) == [1, 2, 3, 4, 5]
    assert matrix.sent["chord"].value == 10
    assert matrix.sent["no result"].state == "PENDING"


def test_links_have_delays_of_their_own(matrix: Matrix) -> None:
    assert matrix.notes["linked"][0]["ran_ms"] - matrix.notes["link"][0]["ran_ms"] >= 300


def test_an_expired_task_is_revoked_by_the_worker(matrix: Matrix) -> None:
    assert matrix.sent["expired"].state == "REVOKED"


def test_a_far_task_waits_in_the_store(matrix: Matrix) -> None:
    assert matrix.sent["in a year"].state == "PENDING"
    redis = matrix.stack.redis  # the entry of beat goes through the wheel queue once a second
    left = "no message is in the wheel queue, and none unacknowledged"
    wait_until(lambda: redis.llen("wheel.0") == redis.hlen("unacked") == 0, left)


def test_a_call_without_the_wheel_is_held_by_the_worker(matrix: Matrix) -> None:
    assert matrix.notes["native"][0]["eta"] is not None


def test_a_past_eta_is_run_at_once_with_its_eta(matrix: Matrix) -> None:
    assert matrix.notes["past eta"][0]["eta"] is not None
    assert matrix.notes["countdown 0"][0]["eta"] is None


def test_entries_of_beat_may_have_a_countdown(matrix: Matrix) -> None:
    assert all(note["eta"] is None for note in matrix.notes["from beat"])
    assert len(matrix.notes["from beat"]) == len({note["id"] for note in matrix.notes["from beat"]})


def test_nothing_ran_that_was_not_sent(matrix: Matrix) -> None:
    assert set(matrix.notes) - set(matrix.expected) <= {"the last", "from beat"}
