"""Real processes of the example project, each test in a run folder of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.demo.runs import TEST_S, processes_of

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test of this folder the patience of its waits."""
    for item in items:
        if item.path.is_relative_to(FOLDER) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_S))


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "run"
    folder.mkdir()
    yield folder
    for process in processes_of(folder):  # a failed test may leave processes behind
        process.kill()
