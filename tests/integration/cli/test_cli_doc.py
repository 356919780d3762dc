"""The examples of every command print the lines and exit codes that they name, and the site has every command.

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
from tests.kit.generated import EXAMPLES, site_page
from tests.kit.manual import links, page, wheel_commands
from tests.kit.patience import wait_until
from tests.kit.stack import Stack

DOC = page("cli.md")
PROGRAM = "celery -A proj wheel "
LONG = re.compile(r"--[a-z-]+").findall


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


@pytest.mark.slow
def test_the_examples_run(stack: Stack, command: Commands, in_folder: Path) -> None:
    running, stopped = EXAMPLES.split("\n## No scheduler runs from here on\n")
    for number in range(1, 9):
        watch = [f"order:{number}"]
        stack.app.send_task(
            "app.remind", (number,), countdown=3_600, task_id=f"remind-{number}", wheel={"watch": watch}
        )
    stack.app.send_task("app.remind", (9,), countdown=0.1, task_id="remind-9")
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
def test_the_site_has_every_command_with_its_options_and_an_example(name: str) -> None:
    [section] = re.findall(rf"^### {name}\n(.*?)(?=^##|\Z)", site_page("cli.md", DOC), re.DOTALL | re.MULTILINE)
    options = {opt for one in COMMANDS[name].params if isinstance(one, click.Option) for opt in one.opts}
    assert {found for row in re.findall(r"^\| `(-.*?)` \|", section, re.MULTILINE) for found in LONG(row)} >= options
    assert " ".join(COMMANDS[name].help.split()[:3]) in section.replace("`", "")
    assert any(f"{line.rpartition(PROGRAM)[2]} ".startswith(f"{name} ") for line, _ in examples(section))


def test_the_page_links_every_command_and_its_own_examples_are_among_those_that_run() -> None:
    assert {name.replace(" ", "-") for name in COMMANDS} <= {link.removeprefix("#") for link in links(DOC)}
    assert {line for line, _ in examples(DOC)} <= {line for line, _ in examples(EXAMPLES)}
    assert set(re.findall(r"^### (.*)$", EXAMPLES, re.MULTILINE)) == set(COMMANDS)


def test_wheel_is_a_command_of_celery(stack: Stack) -> None:
    found = subprocess.run([sys.executable, "-m", "celery", "wheel", "--help"], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "Exit codes: 0 done" in found.stdout
