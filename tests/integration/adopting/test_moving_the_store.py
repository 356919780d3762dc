"""A Django project in use moves from the default store to its own database, by one command."""

import json

from tests.integration.adopting.conftest import NewProject
from tests.kit.patience import wait_until
from tests.kit.servers.redis import RedisServer

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
