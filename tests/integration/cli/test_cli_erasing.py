"""``celery wheel erase`` with a real scheduler, Redis and SQLite: the receipt, the confirmation, the rewrite."""

import pytest

from tests.integration.cli.conftest import Commands
from tests.kit.patience import wait_until
from tests.kit.stack import Stack


def test_a_group_is_erased_and_the_receipt_is_printed(stack: Stack, command: Commands) -> None:
    for number in range(3):
        stack.app.send_task(
            "app.remind", ("Anna-Mueller",), countdown=3_600, task_id=f"erase-{number}", wheel={"group": "tenant:anna"}
        )
    stack.app.send_task("app.remind", countdown=3_600, task_id="kept")
    wait_until(lambda: stack.app.wheel.get("kept") is not None, "the last task is accepted")
    found = command("erase", "--group", "tenant:anna", "--rewrite", "--yes", "--reason", "ticket 17")
    assert found.exit_code == 0, found.output
    assert "3 pending tasks, which will not be dispatched" in found.stdout
    assert "the database was written anew in" in found.stdout
    assert "anna" not in found.stdout
    assert stack.app.wheel.get("kept") is not None
    assert stack.app.wheel.get("erase-1") is None
    again = command.json("erase", "--group", "tenant:anna", "--yes")
    assert set(again["counts"].values()) == {0}
    assert again["shards"] == {"0": again["counts"]}
    [audited] = [one for one in stack.app.wheel.audit(action="erase").items if one.reason == "ticket 17"]
    assert audited.results[next(iter(audited.results))]["pending"] == 3
    stack.app.wheel.cancel("kept")


@pytest.mark.parametrize("arguments", [(), ("--key", "a", "--group", "b")])
def test_an_erasure_is_of_one_criterion(command: Commands, arguments: tuple[str, ...]) -> None:
    found = command("erase", *arguments, "--yes")
    assert found.exit_code == 2
    assert "name one of --task-id, --key, --group and --schedule" in found.output


def test_an_erasure_is_confirmed(command: Commands) -> None:
    found = command("erase", "--key", "k", stdin="n\n")
    assert found.exit_code != 0
    assert "Erase everything of the key k? Nothing can undo it." in found.output
