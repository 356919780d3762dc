"""A broker that does not answer and a folder that does not exist are errors of one sentence, with exit code 1."""

from pathlib import Path

import pytest

from celery_wheel import Celery
from celery_wheel.conf import Conf
from celery_wheel.scheduler.service import open_store_of
from tests.integration.cli.conftest import invoke
from tests.kit.servers import free_port
from tests.kit.servers.redis import RedisServer


def an_app(url: str, folder: Path) -> Celery:
    app = Celery("away", broker=url, set_as_current=False)
    app.conf.wheel_store = f"sqlite:///{folder}/wheel.sqlite3"
    open_store_of(Conf(app)).close()
    return app


@pytest.mark.parametrize(
    "arguments", [("drain", "--dry-run"), ("drain", "--to-broker", "--yes"), ("bench", "--tasks", "100")]
)
def test_a_broker_that_does_not_answer_is_one_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    port = free_port()
    found = invoke(an_app(f"redis://:secret@127.0.0.1:{port}/0", tmp_path), *arguments)
    assert found.exit_code == 1, found.output
    [line] = found.stderr.splitlines()
    assert line.startswith(f"Error: the broker at redis://:**@127.0.0.1:{port}/0 does not answer (")
    assert line.endswith("check that it runs and that this host reaches it, or correct broker_url")
    assert [one.name for one in tmp_path.iterdir() if "bench" in one.name] == []


def test_a_folder_that_does_not_exist_is_one_line_and_no_task_is_moved(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis") as server:
        app = an_app(server.url, tmp_path)
        app.send_task("work", countdown=3_600, task_id="one")
        found = invoke(app, "drain", "--file", str(tmp_path / "nowhere" / "tasks.jsonl"), "--yes")
        assert found.exit_code == 1, found.output
        assert "nowhere/tasks.jsonl must be in a folder that can be written to" in found.stderr
        assert len(found.stderr.splitlines()) == 1
        done = invoke(app, "drain", "--file", str(tmp_path / "tasks.jsonl"), "--yes")
        assert done.exit_code == 0, done.output
        assert "1 task and 0 schedules; left in the store: 0 and 0" in done.stdout


def test_a_dry_run_of_an_import_needs_no_store(tmp_path: Path) -> None:
    app = Celery("away", broker=f"redis://127.0.0.1:{free_port()}/0", set_as_current=False)
    app.conf.wheel_store = f"sqlite:///{tmp_path}/wheel.sqlite3"
    (tmp_path / "crontab").write_text("30 2 * * * /bin/true\n")
    arguments = ("schedules", "import", "--from", "crontab", "--file", f"{tmp_path}/crontab", "--task", "shell")
    found = invoke(app, *arguments, "--dry-run")
    assert found.exit_code == 0, found.output
    assert "1 created: nothing was changed (--dry-run)" in found.stdout
    assert "there is no store at" in found.stderr
    assert not (tmp_path / "wheel.sqlite3").exists()
    assert invoke(app, *arguments).exit_code == 1
