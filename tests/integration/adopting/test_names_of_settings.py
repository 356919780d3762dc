"""The names under which a project has its settings: Celery's old ones, Django's with and without a namespace."""

import json

import pytest

from tests.integration.adopting.conftest import NewProject
from tests.kit.patience import wait_until
from tests.kit.servers.redis import RedisServer

MODULE = """
from celery_wheel import Celery

app = Celery("tasks", broker="memory://")
app.config_from_object("celeryconfig")
"""

SEND = "import django; django.setup(); from shop.celery import touch; touch.apply_async([{!r}], countdown=1)"


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
        project.output("-c", SEND.format(str(ran)))
        wait_until(lambda: ran.exists() or not (worker.is_alive() and beat.is_alive()), "the task has run")
        assert ran.exists()
        beat.terminate()  # settles the dispatch
        done = project.run("-m", "celery", "-A", "shop", "wheel", "history", "--json")
        assert [one["task"] for one in json.loads(done.stdout)["items"]] == ["shop.celery.touch"], done.stderr
        assert (project.folder / "pending.sqlite3").exists()


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
