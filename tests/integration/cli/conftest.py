"""The commands run in this process, with a real scheduler, Redis and SQLite, which the tests of a module share."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from celery_wheel import Celery
from celery_wheel.cli import wheel
from tests.kit.patience import wait_until
from tests.kit.processes import Process
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack


def invoke(app: Celery, *arguments: str, stdin: str | None = None) -> Result:
    """Return the output and the exit code of a command; an error that no user could have caused is raised."""
    context = CLIContext(app=app, no_color=True, workdir=None, quiet=False)
    found = CliRunner().invoke(wheel, arguments, input=stdin, obj=context)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found


@dataclass
class Commands:
    app: Celery
    beat: Process

    def __call__(self, *arguments: str, stdin: str | None = None) -> Result:
        return invoke(self.app, *arguments, stdin=stdin)

    def stop(self) -> None:
        self.beat.terminate()

    def json(self, *arguments: str, stdin: str | None = None, code: int = 0) -> Any:
        found = self(*arguments, "--json", stdin=stdin)
        assert found.exit_code == code, found.output
        return json.loads(found.stdout)

    def pages(self, *arguments: str) -> list[Any]:
        found = [self.json(*arguments)]
        while found[-1]["next"] is not None:
            found.append(self.json(*arguments, "--after", found[-1]["next"]))
        return found


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("cli")
    with RedisServer(folder / "redis") as server, Stack(folder, server) as found:
        yield found


@pytest.fixture(scope="module")
def command(stack: Stack) -> Commands:
    found = Commands(stack.app, stack.beat())
    wait_until(lambda: found("status").exit_code == 0, "a scheduler holds the shard")
    return found


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path
