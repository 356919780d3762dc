"""The example project passes Django's checks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.demo.runs import PATIENCE_S, PROJECT


def manage(run_dir: Path, *arguments: str) -> tuple[int, str]:
    """Return the exit code and the output of a command of the project, in which a warning is an error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "manage.py", *arguments],
        cwd=PROJECT,
        env={**os.environ, "RUN_DIR": str(run_dir)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [("check", "--fail-level=WARNING"), ("makemigrations", "--check", "--dry-run")])
def test_djangos_checks_find_nothing(arguments: tuple[str, ...], run_dir: Path) -> None:
    code, said = manage(run_dir, *arguments)
    assert code == 0, said


def test_a_day_that_is_not_in_the_data_is_refused_with_a_sentence(run_dir: Path) -> None:
    refusal = "CommandError: date must be a day of 2013, got 2014-01-01\n"
    assert manage(run_dir, "replay_flights", "--date=2014-01-01") == (1, refusal)
