"""Commands that read have an output for people and one for programs."""

import json
import time
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Commands
from tests.kit.patience import wait_until
from tests.kit.stack import Stack

HOUR_MS = 3_600_000
#: This text would clear a terminal, and turn the text beside it.
NASTY = "\x1b[2J\u202e[red]"


@pytest.fixture(scope="module")
def filled(stack: Stack, command: Commands) -> Commands:
    for n in range(25):
        stack.app.send_task("odd" if n % 2 else "even", (n,), countdown=3_600 + n, task_id=f"t{n:02}", queue="work")
    stack.app.send_task(NASTY, countdown=7_200, task_id=f"nasty{NASTY}", wheel={"key": "k"})
    stack.app.send_task("even", countdown=0.05, task_id="gone")
    wait_until(lambda: len(stack.app.wheel.pending().items) == 26, "all tasks are in the store")
    wait_until(lambda: len(stack.app.wheel.history().items) == 1, "one task is dispatched")
    return command


def test_each_page_but_the_last_names_the_next(filled: Commands) -> None:
    pages = filled.pages("list", "--queue", "work", "--limit", "5")
    assert [one["task_id"] for page in pages for one in page["items"]] == [f"t{n:02}" for n in range(25)]
    assert [len(page["items"]) for page in pages] == [5] * 5


def test_all_as_json_is_a_line_for_each_task(filled: Commands) -> None:
    lines = filled("list", "--all", "--json", "--task", "odd").stdout.splitlines()
    assert [json.loads(line)["task_id"] for line in lines] == [f"t{n:02}" for n in range(1, 25, 2)]


def test_a_span_includes_its_beginning_and_not_its_end(filled: Commands) -> None:
    due = [one["due_ms"] for one in filled.json("list", "--queue", "work")["items"]]
    page = filled.json("list", "--queue", "work", "--from", str(due[3]), "--to", str(due[6]))
    assert [one["due_ms"] for one in page["items"]] == due[3:6]
    assert filled("list", "--from", "+1h", "--to", "-1h").exit_code == 2


def test_a_messages_text_is_escaped_on_a_terminal(filled: Commands) -> None:
    for arguments in (("list",), ("show", f"nasty{NASTY}"), ("forecast", "--by", "task")):
        shown = filled(*arguments).stdout
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert r"\x1b[2J\u202e[red]" in shown
    assert filled.json("show", f"nasty{NASTY}")["messages"][0]["task"] == NASTY


def test_show_writes_the_whole_body_with_an_option(filled: Commands) -> None:
    [message] = filled.json("show", "t07")["messages"]
    assert message["state"] == "pending"
    body = filled("show", "t07", "--body").stdout_bytes
    assert json.loads(body)[0] == [7]
    assert message["body"]["bytes"] == len(body)
    assert filled("show", "t07", "--body", "--json").exit_code == 2


def test_history_has_dispatched_tasks_with_their_lateness(filled: Commands) -> None:
    [one] = filled.json("history")["items"]
    assert one["task_id"] == "gone"
    assert one["late_ms"] == one["dispatched_ms"] - one["eta_ms"] >= 0
    assert filled.json("show", "gone")["messages"][0]["state"] == "dispatched"


def test_the_forecast_adds_up(filled: Commands) -> None:
    found = filled.json("forecast", "--by", "task", "--rate", "1")
    assert found["pending"] == sum(one["pending"] for one in found["spans"]) == 26
    counts = dict.fromkeys(("odd", "even", NASTY), 0)
    for one in found["spans"]:
        counts[one["task"]] += one["pending"]
        assert one["to_ms"] - one["from_ms"] == HOUR_MS
    assert counts == {"odd": 12, "even": 13, NASTY: 1}
    assert found["drain"]["worst"] <= 26
    assert filled("forecast", "--queue", "other").stdout == "nothing is pending\n"


def test_levels_and_the_status_count_pending_tasks(filled: Commands) -> None:
    for command in ("levels", "status"):
        [shard] = filled.json(command)["shards"]
        assert (shard["pending"], shard["live"]) == (26, True)
    assert filled("levels", "--shard", "7").exit_code == 2


def test_the_doctor_names_what_is_wrong_and_what_to_do(filled: Commands, stack: Stack) -> None:
    found = filled.json("doctor")
    notes = {one["about"]: one["remedy"] for one in found["findings"] if one["grade"] == "note"}
    assert notes == {"appendonly": "Set appendonly to yes. On a machine for development it may stay as it is."}
    assert filled("doctor").output.endswith(f"{len(found['findings'])} findings: 0 errors, 0 warnings\n")
    stack.redis.config_set("maxmemory-policy", "allkeys-lru")
    stack.redis.config_set("appendonly", "yes")
    wait_until(lambda: stack.redis.info("persistence")["aof_rewrite_in_progress"] == 0, "the log is begun")
    found = filled.json("doctor", code=3)
    warnings = {one["about"]: one["remedy"] for one in found["findings"] if one["grade"] == "warning"}
    assert warnings == {"eviction": "Set maxmemory-policy to noeviction."}
    stack.redis.config_set("maxmemory-policy", "noeviction")
    notes = [one["about"] for one in filled.json("doctor")["findings"] if one["grade"] == "note"]
    assert notes == ["appendfsync"], "a loss of power may take the last second"
    stack.redis.config_set("appendfsync", "always")
    found = filled.json("doctor")
    assert {one["grade"] for one in found["findings"]} == {"ok"}
    assert {"settings", "store", "broker", "clock", "shard 0", "queue 0"} <= {one["about"] for one in found["findings"]}


def test_a_wrong_setting_hides_no_other_finding(
    filled: Commands, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(stack.app.conf, "wheel_objective", 0)
    found = filled.json("doctor", code=1)
    assert [one["about"] for one in found["findings"] if one["grade"] == "error"] == ["settings"]
    assert {"store", "broker", "clock", "shard 0", "queue 0"} <= {one["about"] for one in found["findings"]}


def test_a_load_that_was_left_open_is_reported_and_can_be_aborted(filled: Commands, stack: Stack) -> None:
    two_days_ago_ms = int(time.time() * 1_000) - 48 * HOUR_MS
    stack.app.wheel.store.loads.begin("trials 1", two_days_ago_ms)
    try:
        [one] = filled.json("loads")["loads"]
        assert (one["name"], one["state"], one["begun_ms"]) == ("trials 1", "open", two_days_ago_ms)
        remedies = {one["about"]: one["remedy"] for one in filled.json("doctor", code=3)["findings"]}
        assert remedies["load"].endswith("loads --abort 'trials 1'")
        refused = filled("loads", "--abort", "trials 1")
        assert (refused.exit_code, filled.json("loads")["loads"][0]["state"]) == (1, "open")
    finally:
        assert filled("loads", "--abort", "trials 1", "--yes").exit_code == 0
    [one] = filled.json("loads")["loads"]
    assert one["state"] == "aborted"
    again = filled("loads", "--abort", "trials 1", "--yes")
    assert (again.exit_code, again.stderr) == (3, "nothing was aborted: the load trials 1 is aborted\n")


def test_an_unreachable_store_is_one_line(filled: Commands, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(stack.app.conf, "wheel_store", f"sqlite:///{stack.folder}/nowhere.sqlite3")
    found = filled("list")
    assert found.exit_code == 1
    [line] = found.stderr.splitlines()
    assert line.startswith(f"Error: there is no store at {stack.folder}/nowhere.sqlite3; a scheduler makes it")


def test_audit_lists_the_requests_of_people(stack: Stack, command: Commands) -> None:
    for name in ("audited-1", "audited-2"):
        command("pause", "--queue", name, "--reason", "incident 42")
        command("resume", "--queue", name)
    found = command("audit", "--name", "queue:audited-1")
    assert found.exit_code == 0
    for word in ("resume", "pause", "cli", "1 done", "queue:audited-1", "incident 42"):
        assert word in found.output
    items = command.json("audit", "--action", "pause", "--since", "-1h")["items"]
    assert [one["results"] for one in items[:2]] == [{"queue:audited-2": "done"}, {"queue:audited-1": "done"}]
    assert {(one["origin"], one["reason"]) for one in items[:2]} == {("cli", "incident 42")}
    page = command.json("audit", "--limit", "1")
    assert command.json("audit", "--limit", "1", "--after", page["next"])["items"][0]["action"] == "pause"
    assert command.json("audit", "--by", "nobody")["items"] == []
    wrong = command("audit", "--after", "x")
    assert (wrong.exit_code, "a cursor must be" in wrong.output) == (1, True)


def test_audit_verify_finds_a_cut_chain(stack: Stack, command: Commands, tmp_path: Path) -> None:
    command("pause", "--queue", "audited-3")
    (tmp_path / "heads").write_text(command("audit", "verify").output)
    command("resume", "--queue", "audited-3")
    found = command("audit", "verify", "--head", str(tmp_path / "heads"))
    assert (found.exit_code, "ok; head" in found.output, "entries 1 to" in found.output) == (0, True, True)
    chains = command.json("audit", "verify")["chains"]
    last = max(chains, key=lambda one: one["last"])
    wrong = command("audit", "verify", "--head", f"{last['chain']}:{last['last'] + 1}:{'a' * 64}")
    assert (wrong.exit_code, "of the noted head is missing" in wrong.output) == (1, True)
    assert command("audit", "verify", "--head", "nothing").exit_code == 1
    lines = command("audit", "export").output.splitlines()
    assert len(lines) == 1 + sum(one["last"] - one["first"] + 1 for one in chains)


def test_a_masked_value_is_in_no_output(stack: Stack, command: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, kwargs = "hunter2", {"user": 7, "password": "hunter2"}
    stack.app.send_task("work", kwargs=kwargs, countdown=3_600, task_id="masked-1", headers={"password": secret})
    wait_until(lambda: stack.app.wheel.get("masked-1") is not None, "it is accepted")
    stack.app.wheel.schedules.create("masked", 3_600.0, "work", kwargs=kwargs, check_task=False)
    stack.app.wheel.schedules.pause("masked")
    calls = (
        ("show", "masked-1"),
        ("show", "masked-1", "--json"),
        ("show", "masked-1", "--body"),
        ("schedules", "list", "--json"),
        ("schedules", "show", "masked"),
        ("schedules", "show", "masked", "--json"),
        ("schedules", "history", "masked", "--json"),
    )
    outputs = [command(*call).output for call in calls]
    assert all(secret in output for output in outputs), "without a mask they show it"
    monkeypatch.setitem(stack.app.conf, "wheel_mask", ["password"])
    for call in calls:
        output = command(*call).output
        assert secret not in output, call
        assert "********" in output, call
        assert "user" in output, call
    command("schedules", "delete", "masked")
    command("cancel", "masked-1")
