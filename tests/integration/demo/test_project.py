"""The example project passes Django's checks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.demo.runs import PATIENCE_S, PROJECT


@pytest.mark.parametrize("arguments", [("check", "--fail-level=WARNING"), ("makemigrations", "--check", "--dry-run")])
def test_djangos_checks_find_nothing(arguments: tuple[str, ...], run_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "manage.py", *arguments],
        cwd=PROJECT,
        env={**os.environ, "RUN_DIR": str(run_dir)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_day_that_is_not_in_the_data_is_refused_with_a_sentence(run_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "replay_flights", "--date=2014-01-01"],
        cwd=PROJECT,
        env={**os.environ, "RUN_DIR": str(run_dir)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 1
    assert done.stderr.strip() == "CommandError: date must be a day of 2013, got 2014-01-01"
