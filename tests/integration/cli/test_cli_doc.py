"""The examples of docs/cli.md print the lines and exit codes that they name; the page has every command.

::

    $ celery -A proj wheel show other  # 3       exit code 3; 0 without a comment
    the store does not know task other…          lines of its output, in this order; … stands for any text
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.integration.cli.conftest import Commands
from tests.kit.manual import page, wheel_commands
from tests.kit.patience import wait_until
from tests.kit.stack import Stack

DOC = page("cli.md")
PROGRAM = "celery -A proj wheel "


def examples(text: str) -> Iterator[tuple[str, list[str]]]:
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for call in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, *said = call.splitlines()
            yield line, said


def run(command: Commands, line: str, said: list[str]) -> None:
    line, _, code = line.partition("  # ")
    before, _, arguments = line.rpartition(PROGRAM)
    stdin = None
    if before:
        program = shlex.split(before.rstrip(" |"))
        stdin = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    found = command(*shlex.split(arguments), stdin=stdin)
    assert found.exit_code == int(code or 0), f"{line}: {found.output}"
    printed = iter(found.output.splitlines())
    for one in said:
        pattern = r"\s*" + re.escape(one).replace("…", ".*").replace(r"\ ", r"\s+")
        assert any(re.match(pattern, each) for each in printed), f"{line} printed\n{found.output}\nand not {one}"


def test_the_examples_run(stack: Stack, command: Commands, in_folder: Path) -> None:
    running, stopped = DOC.split("\n## While no scheduler runs\n")
    [setup] = re.findall(r"```python\n(.*?)```", running, re.DOTALL)
    exec(setup, {"app": stack.app})  # noqa: S102 - the manual's own
    stack.app.send_task("app.remind", countdown=3_600, task_id="bad-1", queue="broken")
    stack.redis.hset("broken", "a", "b")  # a key of another type than the list of a queue
    assert stack.app.wheel.run_now("bad-1") == "done"
    wait_until(lambda: [one.task_id for one in stack.app.wheel.outcomes().items] == ["bad-1"], "one is rejected")
    wait_until(
        lambda: [one.task_id for one in stack.app.wheel.history().items] == ["remind-9"], "one task is dispatched"
    )
    for line, said in examples(running):
        if "requeue bad-1" in line:
            stack.redis.delete("broken")
        run(command, line, said)
    command.stop()
    for line, said in examples(stopped):
        run(command, line, said)
        if "reshard 2" in line:
            stack.app.conf.wheel_shards = 2


COMMANDS = wheel_commands()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_is_documented_with_an_example_and_no_option_of_another(name: str) -> None:
    """The site writes the table of all options from the code."""
    [section] = re.findall(rf"^### {name}\n(.*?)(?=^##|\Z)", DOC, re.DOTALL | re.MULTILINE)
    options = {opt for one in COMMANDS[name].params if isinstance(one, click.Option) for opt in one.opts}
    prose = re.sub(r"```.*?```", "", section, flags=re.DOTALL)
    assert set(re.findall(r"`(--[a-z-]+)", prose)) - {"--json"} <= options
    assert any(f"{line.rpartition(PROGRAM)[2]} ".startswith(f"{name} ") for line, _ in examples(section))


def test_every_documented_command_exists() -> None:
    assert set(re.findall(r"^### (.*)$", DOC, re.MULTILINE)) == set(COMMANDS)


def test_wheel_is_a_command_of_celery(stack: Stack) -> None:
    found = subprocess.run([sys.executable, "-m", "celery", "wheel", "--help"], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "Exit codes: 0 done" in found.stdout
