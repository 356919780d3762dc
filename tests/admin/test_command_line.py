"""Celery's own command line in a Django project uses the app that the project's other processes use."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.kit.processes import ROOT
from tests.kit.site.running import run


def celery(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"DJANGO_SETTINGS_MODULE": "tests.kit.site.settings", "PYTHONPATH": str(ROOT), **environment}
    return run(folder, variables, "-m", "celery", "-A", "tests.kit.site", "wheel", *arguments)


def test_the_doctor_sees_that_the_projects_app_has_the_wheel(tmp_path: Path) -> None:
    done = celery(tmp_path, "doctor", "--json")
    found = {one["about"]: one for one in json.loads(done.stdout)["findings"]}
    assert found["app"]["text"] == "its delayed tasks go to the wheel"
    assert found["visibility"]["grade"] == "ok"
    assert found["store"]["grade"] in {"ok", "error"}  # this test needs no store


def test_settings_with_which_django_cannot_start_are_an_error_of_one_line(tmp_path: Path) -> None:
    text = "from tests.kit.site.settings import *\nINSTALLED_APPS = [*INSTALLED_APPS, 'nowhere']\n"
    (tmp_path / "broken.py").write_text(text)
    path = f"{ROOT}{os.pathsep}{tmp_path}"
    done = celery(tmp_path, "doctor", DJANGO_SETTINGS_MODULE="broken", PYTHONPATH=path)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(
        "Error: DJANGO_SETTINGS_MODULE must be settings that Django starts with, got No module named"
    )
