"""A store that was restored from an older copy, as the next holder finds it by the broker's offsets and epoch."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.unit.engine.conftest import Rig

OLDER_STORE = "the store is older than its broker"


def copy_of(rig: Rig) -> dict[int, Any]:
    return copy.deepcopy(rig.disk.shards, {id(rig.disk): rig.disk})


def restore(rig: Rig, backup: dict[int, Any]) -> None:
    rig.disk.shards = backup
    rig.engine = rig.new_engine("two")
    rig.pass_time(10_000)


def test_tasks_of_the_copy_that_were_dispatched_since_count_as_dispatched_and_the_log_says_so(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.send("a", 1_000)
    rig.send("b", 2_000)
    rig.run()
    backup = copy_of(rig)
    for _ in range(2):
        rig.pass_time(1_000)
        rig.run(rounds=2)
    assert rig.pushed == ["a", "b"]
    restore(rig, backup)
    rig.run(rounds=3)
    assert rig.pushed == ["a", "b"]
    assert OLDER_STORE in caplog.text


def test_a_holder_that_ended_before_its_settlement_is_no_older_copy(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.send("a", 0)
    rig.send("b", 1_000)
    rig.run(rounds=2)
    rig.pass_time(1_000)
    rig.run("tend", "prefetch", "dispatch")
    assert rig.pushed == ["a", "b"]
    restore(rig, rig.disk.shards)
    rig.run(rounds=3)
    assert rig.pushed == ["a", "b"]
    assert OLDER_STORE not in caplog.text


def test_an_epoch_that_the_broker_has_passed_names_the_copy(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.send("a", 3_600_000)
    rig.run()
    backup = copy_of(rig)
    for name in ("two", "three", "four"):
        rig.engine = rig.new_engine(name)
        rig.pass_time(10_000)
        rig.run("tend")
    restore(rig, backup)
    rig.run("tend")
    assert "where no other scheduler runs, the store was restored from an older copy" in caplog.text
    for _ in range(10):
        rig.pass_time(10_000)
        rig.run("tend")
    assert rig.engine.held
