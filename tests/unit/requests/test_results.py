"""The answers of several shards are merged into one result."""

from __future__ import annotations

import pytest

from celery_wheel.requests.results import BestResult, CommandResult, CompletionResult, EveryShard, SummedCounts


@pytest.mark.parametrize(
    ("answers", "best"),
    [
        ([], "unknown"),
        (["unknown", "too_late"], "too_late"),
        (["already", "too_late"], "already"),
        (["already", "done", "unknown"], "done"),
    ],
)
def test_the_best_result_of_a_task_counts(answers: list[str], best: str) -> None:
    assert BestResult().merged(["a"], [{"a": one} for one in answers]) == {"a": CommandResult(best)}


def test_done_and_already_are_certain_though_a_shard_is_silent() -> None:
    found = {one.value: one for one in CommandResult}
    assert BestResult().in_doubt(found, set(found)) == {"unknown", "too_late"}
    assert EveryShard().in_doubt(found, set(found)) == set(found)


def test_counts_of_the_shards_that_answered_are_added_up() -> None:
    sums = SummedCounts()
    found = sums.merged(["a", "b"], [{"a": {"done": 1, "too_late": 0}}, {"a": {"done": 2, "too_late": 1}}])
    assert found == {"a": CompletionResult(3, 1), "b": CompletionResult(0, 0)}
    assert sums.certain(found, {"a", "b"}) == {"a": CompletionResult(3, 1)}
