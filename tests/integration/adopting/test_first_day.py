"""The default store: one file for all processes of a project, whatever their working folder.

Errors of the first day come once, in one line, with the remedy. A Django project in use moves from the default store
to its own database, by one command. The names under which a project has its settings: Celery's old ones, Django's
with and without a namespace.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_wheel import Celery
from celery_wheel.conf import Conf
from celery_wheel.conf import store as stores
from tests.integration.adopting.conftest import NewProject
from tests.kit.patience import wait_until
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


@pytest.mark.slow
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


@pytest.mark.slow
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


APP = """
import sys

sys.modules.update(dict.fromkeys({missing!r}))
from celery_wheel import Celery

app = Celery("proj", broker="{broker}", beat_scheduler="wheel")
"""

SQS = "sqs://key:secret@127.0.0.1:1"


@pytest.mark.slow
@pytest.mark.parametrize("missing", [["boto3"], ["boto3", "botocore", "botocore.client"]])
def test_a_missing_client_of_the_broker_is_one_line(project: NewProject, missing: list[str]) -> None:
    project.write("proj.py", APP.format(broker=SQS, missing=missing))
    for command in (["beat"], ["wheel", "drain", "--to-broker", "--yes"]):
        done = project.run("-m", "celery", "-A", "proj", *command)
        assert done.returncode == 1
        [line] = [one for one in done.stderr.splitlines() if one.startswith("Error")]
        if command == ["beat"]:
            assert line.startswith("Error: broker_url needs the client library of sqs://, got ")
            assert line.endswith("run: pip install 'kombu[sqs]'")
        assert "Traceback" not in done.stderr
        assert "secret" not in done.stderr
    if len(missing) > 1:
        sent = project.run("-c", "from proj import app; app.send_task('add', countdown=5)")
        assert "SettingError: broker_url needs the client library of sqs://" in sent.stderr
    doctor = project.run("-m", "celery", "-A", "proj", "wheel", "doctor")
    assert "→ Run: pip install 'kombu[sqs]'\n" in doctor.stdout, doctor.stderr


@pytest.mark.slow
def test_the_warning_about_tls_without_options_comes_once(project: NewProject) -> None:
    project.write("proj.py", APP.format(broker="rediss://127.0.0.1:1/0", missing=[]))
    beat = project.start("beat", "proj", "beat", "-l", "INFO")
    beat.wait_for("lost the broker")
    assert beat.said().count("Secure redis scheme specified (rediss)") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("options", "times"), [((), 1), (("-S", "wheel"), 0)], ids=["another", "ours"])
def test_beat_without_the_wheel_says_that_tasks_wait(project: NewProject, options: tuple[str, ...], times: int) -> None:
    project.write("proj.py", APP.format(broker="memory://", missing=[]).replace(', beat_scheduler="wheel"', ""))
    beat = project.start("beat", "proj", "beat", "-l", "INFO", *options)
    beat.wait_for("shard 0 is held" if options else "until a beat with the wheel runs")
    assert beat.said().count("until a beat with the wheel runs") == times


@pytest.mark.slow
def test_beat_without_a_folder_for_its_store_names_the_setting(project: NewProject) -> None:
    project.write("proj.py", f"import os\nos.access = lambda *_: False\n{APP.format(broker='memory://', missing=[])}")
    project.variables["XDG_STATE_HOME"] = "/proc/nowhere"
    done = project.run("-m", "celery", "-A", "proj", "beat")
    assert done.returncode == 1
    assert "Error: wheel_store must be set where this user may write neither to the project's folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_script_that_does_not_set_django_up_is_told_to(project: NewProject) -> None:
    project.write_django('CELERY_BEAT_SCHEDULER = "wheel"\nCELERY_BROKER_URL = "memory://"\n', "CELERY")
    use = "from django_wheel import wheel; print(wheel.conf.store)"
    said = project.run("-c", use).stderr
    assert said.endswith("Django is not set up in this process: call django.setup() first.\n")
    assert project.output("-c", f"import django; django.setup(); {use}").endswith("celery-wheel.sqlite3")


SETTINGS = """
CELERY_BROKER_URL = "{broker}"
CELERY_BEAT_SCHEDULER = "wheel"
CELERY_BEAT_SCHEDULE_FILENAME = str(BASE_DIR / "beat")
DATABASES["default"]["OPTIONS"] = {{"timeout": 20}}
"""

SEND = """
import django
django.setup()
from shop.celery import app, touch
for n in range(3):
    touch.apply_async([{path!r} + str(n)], countdown=3_600, task_id=f"task-{{n}}")
app.wheel.pause(queue="paused", timeout=30)
"""

RUN_NOW = "import django; django.setup(); from shop.celery import app; print(app.wheel.run_now(['task-0', 'task-2']))"


@pytest.mark.slow
def test_pending_tasks_and_pauses_move_to_django_default(project: NewProject) -> None:
    old = project.folder / "celery-wheel.sqlite3"
    command = ("-m", "celery", "-A", "shop", "wheel")
    with RedisServer(project.folder / "redis") as server:
        settings = SETTINGS.format(broker=server.url)
        project.write_django(settings, "CELERY")
        project.output("-m", "django", "migrate", "--verbosity", "0")  # recorded, while the tables are elsewhere
        beat = project.start("before", "shop", "beat", "-l", "INFO")
        beat.wait_for("shard 0 is held")
        project.output("-c", SEND.format(path=str(project.folder / "ran-")))
        wait_until(lambda: len(pending(project)) == 3, "the tasks are accepted")
        refused = project.run(*command, "move", "--to", "django://default", "--yes")
        assert refused.returncode == 1
        assert "a scheduler is at work on the store" in refused.stderr
        beat.terminate()

        said = project.output(*command, "move", "--to", "django://default", "--yes")
        assert said.startswith("3 tasks, history included, and ")
        assert said.endswith('restart everything that uses the wheel:\n\nCELERY_WHEEL_STORE = "django://default"')
        assert project.run(*command, "list", "--json").returncode == 1
        stopped = project.start("stopped", "shop", "beat")
        assert stopped.end()[0] == 1
        assert f"the store {old} was moved to {project.folder}/site.sqlite3 on " in stopped.said()

        project.write_django(settings + 'CELERY_WHEEL_STORE = "django://default"\n', "CELERY")
        assert project.output("-m", "django", "makemigrations", "--check", "--dry-run")
        project.start("after", "shop", "beat", "-l", "INFO").wait_for("shard 0 is held")
        project.start("worker", "shop", "worker", "-P", "solo", "--without-mingle")
        assert sorted(pending(project)) == ["task-0", "task-1", "task-2"]
        assert "paused" in project.status("shop")
        project.output("-c", RUN_NOW)
        wait_until(lambda: {one.name for one in project.folder.glob("ran-*")} == {"ran-0", "ran-2"}, "two tasks ran")
        wait_until(lambda: pending(project) == ["task-1"], "their dispatch is settled")


def pending(project: NewProject) -> list[str]:
    found = json.loads(project.output("-m", "celery", "-A", "shop", "wheel", "list", "--json"))
    return [one["task_id"] for one in found["items"]]


MODULE = """
from celery_wheel import Celery

app = Celery("tasks", broker="memory://")
app.config_from_object("celeryconfig")
"""

SEND_ONE = "import django; django.setup(); from shop.celery import touch; touch.apply_async([{!r}], countdown=1)"


@pytest.mark.slow
@pytest.mark.parametrize("old_names", [1, 2])
def test_the_error_of_mixed_names_has_the_old_name_of_the_scheduler(project: NewProject, old_names: int) -> None:
    """With one name of each kind, Celery proposes to rename the project's own."""
    lines = ['CELERY_RESULT_BACKEND = "cache+memory://"', 'CELERY_TASK_SERIALIZER = "json"'][:old_names]
    project.is_warm = True
    project.write("tasks.py", MODULE)
    project.write("celeryconfig.py", "\n".join([*lines, 'beat_scheduler = "wheel"']))
    for command in ("beat", "worker", "report"):
        done = project.run("-m", "celery", "-A", "tasks", command)
        assert done.returncode == 1
        assert 'With old names, the scheduler is CELERYBEAT_SCHEDULER = "wheel" and not beat_scheduler.' in done.stderr
    project.write("celeryconfig.py", "\n".join([*lines, 'CELERYBEAT_SCHEDULER = "wheel"', "wheel_lease = 7"]))
    assert project.output("-c", "from tasks import app; print(app.conf.beat_scheduler)") == "wheel"


@pytest.mark.slow
def test_a_django_project_with_old_names_and_no_namespace_runs_delayed_tasks(project: NewProject) -> None:
    ran = project.folder / "ran"
    with RedisServer(project.folder / "redis") as server:
        project.write_django(
            f"""
BROKER_URL = "{server.url}"
CELERY_RESULT_BACKEND = "{server.url}"
CELERY_TASK_SERIALIZER = "json"
CELERYBEAT_SCHEDULER = "wheel"
WHEEL_STORE = "sqlite:///{project.folder}/pending.sqlite3"
WHEEL_HISTORY_RETENTION = 7_200
"""
        )
        assert "no issues" in project.output("-m", "django", "check")
        worker = project.start("worker", "shop", "worker", "-P", "solo", "-l", "INFO", "--without-mingle")
        beat = project.start("beat", "shop", "beat", "-l", "INFO")
        project.output("-c", SEND_ONE.format(str(ran)))
        wait_until(lambda: ran.exists() or not (worker.is_alive() and beat.is_alive()), "the task has run")
        assert ran.exists()
        beat.terminate()  # settles the dispatch
        done = project.run("-m", "celery", "-A", "shop", "wheel", "history", "--json")
        assert [one["task"] for one in json.loads(done.stdout)["items"]] == ["shop.celery.touch"], done.stderr
        assert (project.folder / "pending.sqlite3").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("namespace", "given", "name", "reason"),
    [
        (None, "", "CELERYBEAT_SCHEDULER", ""),
        (
            None,
            'CELERY_BEAT_SCHEDULER = "wheel"',
            "CELERYBEAT_SCHEDULER",
            "without a namespace, so CELERY_BEAT_SCHEDULER has no effect",
        ),
        ("CELERY", "", "CELERY_BEAT_SCHEDULER", ""),
        (
            "JOBS",
            'CELERY_BEAT_SCHEDULER = "wheel"',
            "JOBS_BEAT_SCHEDULER",
            'with namespace="JOBS", so CELERY_BEAT_SCHEDULER has no effect',
        ),
    ],
)
def test_the_check_names_the_setting_that_the_app_reads(
    project: NewProject, namespace: str | None, given: str, name: str, reason: str
) -> None:
    project.write_django(given, namespace)
    said = project.run("-m", "django", "check").stderr
    assert "django_wheel.W001" in said
    assert f'HINT: Set {name} = "wheel"' in said
    assert reason in said


@pytest.mark.slow
@pytest.mark.parametrize("namespace", ["CELERY", "JOBS"])
def test_a_setting_without_the_prefix_is_named_by_check_doctor_and_beat(project: NewProject, namespace: str) -> None:
    settings = f'{namespace}_BEAT_SCHEDULER = "wheel"\n{namespace}_BROKER_URL = "memory://"\nWHEEL_LEASE = 7\n'
    project.write_django(settings, namespace)
    text = f"WHEEL_LEASE has no effect: the Celery app 'shop' reads its settings with namespace='{namespace}'"
    remedy = f"Rename it to {namespace}_WHEEL_LEASE."
    said = project.run("-m", "django", "check").stderr
    assert f"(django_wheel.W016) {text}\n\tHINT: {remedy}\n" in said
    doctor = project.run("-m", "celery", "-A", "shop", "wheel", "doctor").stdout
    assert text in doctor
    assert f"→ {remedy}\n" in doctor
    project.start("beat", "shop", "beat").wait_for(f"{text}. {remedy}")


@pytest.mark.parametrize("scheduler", ["wheel", "celery.beat:PersistentScheduler"])
def test_the_check_asks_only_for_the_import_where_the_setting_is_there(project: NewProject, scheduler: str) -> None:
    project.write_django(f'CELERY_BEAT_SCHEDULER = "{scheduler}"', "CELERY")
    project.write("shop/__init__.py", "")
    said = project.run("-m", "django", "check").stderr
    assert "mport the Celery app in the __init__.py of the project." in said
    assert ("BEAT_SCHEDULER" in said) == (scheduler != "wheel")


@pytest.mark.parametrize(("namespace", "prefix"), [(None, ""), ("CELERY", "CELERY_"), ("JOBS", "JOBS_")])
def test_every_setting_and_hint_has_the_projects_spelling(
    project: NewProject, namespace: str | None, prefix: str
) -> None:
    scheduler = f'{prefix or "CELERY"}BEAT_SCHEDULER = "wheel"\n'
    project.write_django(scheduler + f"{prefix}WHEEL_LAESE = 2\n", namespace)
    said = project.run("-m", "django", "check").stderr
    assert f"{prefix}WHEEL_LAESE is an unknown setting and has no effect; did you mean {prefix}WHEEL_LEASE?" in said
    assert "W001" not in said
    settings = f'{prefix}WHEEL_STORE = "postgresql://h/d"\n{prefix}WHEEL_TRANSACTIONAL = True\n'
    project.write_django(scheduler + settings, namespace)
    said = project.run("-m", "django", "check").stderr
    assert "got postgresql://…" in said
    assert f'HINT: Set {prefix}WHEEL_STORE = "django://default", or {prefix}WHEEL_TRANSACTIONAL = False.' in said
