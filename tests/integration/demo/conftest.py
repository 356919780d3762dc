"""Real processes of the example project, each test in a run folder of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from demo.stack import Stack

from tests.integration.demo.runs import processes_of
from tests.servers import wait_until


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "run"
    folder.mkdir()
    yield folder
    for process in processes_of(folder):  # only what a failed test left
        process.kill()


@pytest.fixture
def stack(run_dir: Path) -> Iterator[Stack]:
    """The stack, not started."""
    parts = Stack(run_dir, None, wait_until)
    yield parts
    parts.stop()
