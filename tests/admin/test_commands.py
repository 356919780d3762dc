"""``manage.py wheel_status`` prints the same as ``celery wheel status``.

Celery's own command line in a Django project uses the app that the project's other processes use.
"""

import io
import json
import os
import subprocess
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from tests.admin.conftest import snapshot
from tests.kit.holder import LEASE, NOW, Holder
from tests.kit.processes import ROOT, run


def said(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    try:
        call_command("wheel_status", *arguments, stdout=out)
    except SystemExit as end:
        return int(str(end.code)), out.getvalue()
    return 0, out.getvalue()


@pytest.mark.usefixtures("still")
def test_status_prints_the_same_as_celery_wheel_status(holder: Holder) -> None:
    other = Holder(holder.store, 1)
    for one in (holder, other):
        one.store.renew(one.shard, one.epoch, NOW, LEASE, snapshot())
    code, text = said()
    assert code == 0
    assert "host-a" in text
    assert "512 ms" in text
    code, text = said("--json")
    assert (code, len(json.loads(text)["shards"])) == (0, 2)
    other.store.release(1, other.epoch)
    assert said("--json")[0] == 3


@pytest.mark.usefixtures("nowhere")
def test_status_without_a_store_is_an_error() -> None:
    with pytest.raises(CommandError, match="there is no store at"):
        said()
    out = io.StringIO()
    call_command("wheel_migrate_check", stdout=out)
    assert out.getvalue().startswith("no migration is missing; there is no store at")


def celery(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"DJANGO_SETTINGS_MODULE": "tests.kit.site.settings", "PYTHONPATH": str(ROOT), **environment}
    return run(folder, variables, "-m", "celery", "-A", "tests.kit.site", "wheel", *arguments)


def test_the_doctor_sees_that_the_projects_app_has_the_wheel(tmp_path: Path) -> None:
    found = {one["about"]: one for one in json.loads(celery(tmp_path, "doctor", "--json").stdout)["findings"]}
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
    words = "DJANGO_SETTINGS_MODULE must be settings that Django starts with, got No module named"
    assert line.startswith(f"Error: {words}")
