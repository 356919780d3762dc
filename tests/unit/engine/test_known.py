"""Messages that are in the store already, and messages with the id of another task: none of these is dropped."""

from __future__ import annotations

import logging

import pytest

from celery_wheel.store.model import Message
from celery_wheel.values.ids import id_beside
from tests.unit.engine.conftest import Rig

ID = "00000000-0000-7000-8000-0000000000aa"


def accepted(rig: Rig) -> dict[str, str]:
    """Return task id → envelope id."""
    rows = (one.message for one in rig.disk.shard(0).rows.values())
    return {one.task_id: one.envelope_id for one in rows if isinstance(one, Message)}


def test_a_message_that_comes_again_is_dropped(rig: Rig) -> None:
    rig.send("a", 1_000, envelope_id=ID)
    rig.run(rounds=2)
    rig.send("a", 2_000, envelope_id=ID)
    rig.run(rounds=2)
    assert accepted(rig) == {"a": ID}
    assert rig.engine.stats.known == 1


@pytest.mark.parametrize("together", [True, False], ids=["in one round", "one after the other"])
def test_a_task_with_the_envelope_id_of_another_task_is_accepted_under_an_id_of_its_own_once(
    rig: Rig, caplog: pytest.LogCaptureFixture, *, together: bool
) -> None:
    for _ in range(2):
        for task_id in ("a", "b", "c"):
            rig.send(task_id, 1_000, envelope_id=ID)
            if not together:
                rig.run(rounds=2)
        rig.run(rounds=2)
    assert accepted(rig) == {"a": ID, "b": id_beside(ID, "b"), "c": id_beside(ID, "c")}
    assert rig.engine.stats.known == 3
    rig.pass_time(1_000)
    rig.run(rounds=2)
    assert sorted(rig.pushed) == ["a", "b", "c"]
    with caplog.at_level(logging.WARNING):
        rig.engine.stats.rejections.log(0, rig.clock.monotonic_ms())
    (line,) = [one for one in caplog.records if "accepted under other ids" in one.getMessage()]
    assert f"(id): 4; the first is of task tasks.add b: task a has the id {ID} too; correct" in line.getMessage()
