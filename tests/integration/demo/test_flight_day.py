"""A day of real flights, in which the scheduler is killed several times."""

import json

from demo.stack import Stack

from tests.integration.demo.runs import PATIENCE_S, executed, wait

SPEED = 4320  # a day in 20 s
FLIGHTS = 1004
KILL_AT = (100, 250, 400)  # executions; a beat that starts again sends what is overdue at once


def test_kill_9_of_beat_loses_nothing_and_runs_nothing_early_or_twice(stack: Stack) -> None:
    stack.start_broker()
    stack.migrate()
    stack.start_beat()
    stack.wait_for_worker(stack.start_worker())
    replay = stack.manage("replay", "replay_flights", f"--speed={SPEED}", "--lead=5", "--json")
    assert replay.log is not None

    for count in KILL_AT:
        wait(lambda at=count: executed(stack.folder) >= at, f"{count} executions")
        stack.processes.kill("beat")
        assert executed(stack.folder) < FLIGHTS, "the kill came after the day"
        stack.start_beat()

    wait(lambda: stack.processes.ended() is not None, "the end of the replay")
    ended = stack.processes.ended()
    assert ended is replay, f"{ended.name} crashed: {ended.tail()}"
    summary = json.loads(next(line for line in replay.log.read_text().splitlines() if line.startswith("{")))
    assert replay.popen.returncode == 0, summary
    assert {summary[name] for name in ("scheduled", "dispatched", "executed")} == {FLIGHTS}
    assert (summary["lost"], summary["duplicated"], summary["early"], summary["waiting"]) == (0, 0, 0, 0)
    assert summary["lateness_max_ms"] < PATIENCE_S * 1_000, "a restart of beat took too long"
