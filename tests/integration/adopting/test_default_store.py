"""The default store: one file for all processes of a project, whatever their working folder."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_wheel import Celery
from celery_wheel.conf import Conf
from celery_wheel.conf import store as stores
from tests.integration.adopting.conftest import NewProject
from tests.kit.servers.redis import RedisServer

OWN_CLASS = """
from celery_wheel import Celery

app = Celery("proj", broker="{broker}", beat_scheduler="wheel")
"""

INSTALLED = """
import celery
import celery_wheel

app = celery_wheel.install(celery.Celery("anything", broker="{broker}", beat_scheduler="wheel"))
"""

SHOW = "from celery_wheel.conf import Conf; from {} import app; print(Conf(app).store)"


@pytest.mark.parametrize("text", [OWN_CLASS, INSTALLED])
@pytest.mark.parametrize("file", ["proj/celery.py", "jobs.py", "proj/deep/er/app.py"])
def test_every_process_of_a_project_finds_one_file(project: NewProject, tmp_path: Path, text: str, file: str) -> None:
    module = file.removesuffix(".py").replace("/", ".")
    path = project.write(file, text.format(broker="memory://"))
    for folder in path.relative_to(project.folder).parents[:-1]:
        project.write(f"{folder}/__init__.py", "")
    script = project.write("scripts/send.py", f"import other\n{SHOW.format(module)}\n")
    project.write("other.py", f"from {module} import app\n")
    found = {
        project.output("-c", SHOW.format(module)),
        project.output("-c", SHOW.format(module), folder=tmp_path),
        project.output(str(script), folder=Path("/")),
    }
    assert found == {f"sqlite:///{project.folder}/celery-wheel.sqlite3"}


def test_beat_and_the_command_line_name_the_file(project: NewProject, tmp_path: Path) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    file = project.folder / "celery-wheel.sqlite3"
    with RedisServer(project.folder / "redis") as server:
        project.write("proj/__init__.py", "")
        project.write("proj/celery.py", OWN_CLASS.format(broker=server.url))
        beat = project.start("beat", "proj", "beat", "-l", "INFO", "-s", str(tmp_path / "schedule"), folder=elsewhere)
        beat.wait_for(f"the store is {file}")
        beat.wait_for("shard 0 is held")
        assert json.loads(project.status("proj", "--json", folder=tmp_path))["store"] == str(file)
        assert project.status("proj", folder=elsewhere).splitlines()[0] == f"store {file}"
    assert list(elsewhere.iterdir()) == []


def test_a_read_only_project_has_its_file_in_the_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    app = Celery("proj", set_as_current=False)
    folder = stores.project_folder(app)
    assert folder is not None
    assert (folder / "celery_wheel").is_dir()
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(stores, "FILE", "a-test.sqlite3")
    url = Conf(app).store
    assert url.startswith(f"sqlite:///{tmp_path}/state/celery-wheel/proj-")
    stores.make_state_folder(url)
    Path(url.removeprefix("sqlite:///")).touch()
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(stores, "FILE", "a-test.sqlite3")
    assert Conf(app).store == url, "a file that exists goes first"


def test_two_projects_without_a_writable_folder_have_two_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make_project: Callable[..., NewProject]
) -> None:
    found = set()
    for name in ("one", "two"):
        project = make_project(name)
        project.variables["XDG_STATE_HOME"] = str(tmp_path)
        project.write("proj/__init__.py", "")
        project.write("proj/celery.py", OWN_CLASS.format(broker="memory://"))
        found.add(project.output("-c", f"import os; os.access = lambda *_: False; {SHOW.format('proj.celery')}"))
    assert len(found) == 2
    assert all(one.startswith(f"sqlite:///{tmp_path}/celery-wheel/proj-") for one in found)


def test_an_app_without_a_module_has_its_file_in_the_folder_for_states(project: NewProject, tmp_path: Path) -> None:
    project.variables["XDG_STATE_HOME"] = str(tmp_path)
    make = "from celery_wheel import Celery; from celery_wheel.conf import Conf; print(Conf(Celery('a/b')).store)"
    found = {project.output("-c", make, folder=folder) for folder in (project.folder, tmp_path)}
    [url] = found
    assert url.startswith(f"sqlite:///{tmp_path}/celery-wheel/a_b-")
