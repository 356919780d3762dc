"""The suites share code through the kit, which imports no suite."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import conftest

TESTS = Path(__file__).parents[1]


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)


@pytest.mark.parametrize(
    ("suite", "allowed"), [("kit", ("tests.kit",)), ("benchmarks", ("tests.kit", "tests.benchmarks"))]
)
def test_the_kit_and_the_benchmarks_import_no_suite(suite: str, allowed: tuple[str, ...]) -> None:
    files = sorted((TESTS / suite).rglob("*.py"))
    assert files
    found = [f"{path.name}: {name}" for path in files for name in imported(path) if name.startswith("tests.")]
    assert [one for one in found if not one.partition(": ")[2].startswith(allowed)] == []


def test_every_process_that_a_suite_leaves_running_is_of_the_kit() -> None:
    """So the log of the process is part of a failure's report, and the process ends with the tests."""
    text = {path: path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py") if path != Path(__file__)}
    users = {path.relative_to(TESTS).parts[0] for path, found in text.items() if "Popen(" in found}
    assert users == {"kit", "benchmarks", "soak"}


@pytest.mark.xdist_group("together")
@pytest.mark.parametrize("name", ["a", "with a / and an @"])
def test_the_id_of_a_test_ends_with_its_group(request: pytest.FixtureRequest, name: str) -> None:
    """Where pytest-xdist looks for it. Without it, a group has no effect, and nothing else fails."""
    is_grouped = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith(f"[{name}]@together" if is_grouped else f"[{name}]")


@pytest.mark.parametrize("failed_when", ["setup", "call", "teardown"])
def test_a_test_that_failed_is_none_that_a_quick_run_leaves_out(
    monkeypatch: pytest.MonkeyPatch, failed_when: str
) -> None:
    """Else the second ``make check`` after a failure would pass."""
    monkeypatch.setattr(conftest, "_took", {})

    def run(failed_when: str | None) -> float:
        for when in ("setup", "call", "teardown"):
            outcome: Any = "failed" if when == failed_when else "passed"
            place = ("tests/test_x.py", 0, "test_x")
            report = pytest.TestReport("tests/test_x.py::test_x", place, {}, outcome, None, when, duration=2.0)
            conftest.pytest_runtest_logreport(report)
        return conftest._took["tests/test_x.py::test_x"]

    assert run(failed_when) < 0
    assert run(None) == 6
