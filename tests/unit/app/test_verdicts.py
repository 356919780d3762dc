"""The answers of several shards become one."""

from __future__ import annotations

import pytest

from celery_wheel.requests.verdicts import BestVerdict, Completed, EveryShard, Sums, Verdict


@pytest.mark.parametrize(
    ("answers", "best"),
    [
        ([], "unknown"),
        (["unknown", "too_late"], "too_late"),
        (["already", "too_late"], "already"),
        (["already", "done", "unknown"], "done"),
    ],
)
def test_of_a_task_the_best_verdict_counts(answers: list[str], best: str) -> None:
    assert BestVerdict().merged(["a"], [{"a": one} for one in answers]) == {"a": Verdict(best)}


def test_what_is_done_is_so_whatever_a_silent_shard_would_have_said() -> None:
    found = {one.value: one for one in Verdict}
    assert BestVerdict().in_doubt(found, set(found)) == {"unknown", "too_late"}
    assert EveryShard().in_doubt(found, set(found)) == set(found)


def test_counts_are_added_up_and_hold_as_far_as_they_go() -> None:
    sums = Sums()
    found = sums.merged(["a", "b"], [{"a": {"done": 1, "too_late": 0}}, {"a": {"done": 2, "too_late": 1}}])
    assert found == {"a": Completed(3, 1), "b": Completed(0, 0)}
    assert sums.certain(found, {"a", "b"}) == {"a": Completed(3, 1)}
