"""``INSTALLED_APPS += ["django_wheel"]`` is enough: it installs the wheel in apps, and chooses the store.

The examples of docs/django.md run. The fixture ``wheel`` in a Django project: the app is found, and tasks run in the
test's own transaction.

``manage.py wheel_status`` prints the same as ``celery wheel status``.

Celery's own command line in a Django project uses the app that the project's other processes use.
"""

import ast
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import celery
import django
import pytest
from celery import Celery
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import override_settings

from celery_wheel.app import WheelApp
from celery_wheel.beat import WheelScheduler
from celery_wheel.conf import Conf
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.testing import VirtualWheel
from django_wheel import project
from django_wheel import wheel as project_wheel
from django_wheel.database import WheelRouter, place_of, store_alias
from django_wheel.models import TimerRow
from tests.admin.conftest import snapshot, tallied
from tests.kit.holder import LEASE, NOW, Holder
from tests.kit.manual import code, commands, page
from tests.kit.processes import ROOT, run
from tests.kit.site import celery_app


def made(**settings: object) -> Celery:
    app = Celery("made", broker="memory://", set_as_current=False, set_as_default=False)
    app.conf.update(settings)
    return app


def test_the_sites_app_uses_the_wheel() -> None:
    assert isinstance(celery_app, WheelApp)
    sent = celery_app.send_task("site.nothing", countdown=60)
    with celery_app.connection_for_read() as connection:
        message = connection.default_channel.basic_get("wheel.0")
        assert message.headers["id"] == sent.id
        message.ack()


@pytest.mark.parametrize(
    "scheduler", ["wheel", "celery_wheel.beat:WheelScheduler", "celery_wheel.beat.WheelScheduler", WheelScheduler]
)
def test_an_app_that_is_made_later_uses_the_wheel(scheduler: object) -> None:
    app = made(beat_scheduler=scheduler)
    app.finalize()
    assert isinstance(app, WheelApp)
    app.close()


def test_an_app_with_another_scheduler_is_not_changed() -> None:
    app = made()
    app.finalize()
    assert type(app) is celery.Celery
    assert not project.uses_wheel(app)
    app.close()


def test_a_project_that_does_not_import_its_app_gets_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "uses_wheel", lambda app: False)
    with pytest.raises(ImproperlyConfigured, match='Set CELERY_BEAT_SCHEDULER = "wheel"'):
        project.project_wheel()


def test_the_default_store_is_a_file_in_the_projects_folder(tmp_path: Path) -> None:
    plain = made()
    for installed in (["django_wheel"], []):
        with override_settings(BASE_DIR=tmp_path, INSTALLED_APPS=installed):
            assert Conf(plain).store == f"sqlite:///{tmp_path}/celery-wheel.sqlite3"
    plain.close()


@pytest.mark.parametrize(
    ("changed", "url"),
    [
        ({}, "postgresql://anna:p%40ss%2Fword@db.example:5433/shop?sslmode=require"),
        (
            {"HOST": "/run/postgresql", "PORT": ""},
            "postgresql://anna:p%40ss%2Fword@/run/postgresql/shop?sslmode=require",
        ),
        ({"HOST": "", "USER": "", "PASSWORD": "", "PORT": "", "OPTIONS": {}}, "postgresql:///shop"),
        (
            {"HOST": "h1,h2", "PORT": "5432,5433", "OPTIONS": {"target_session_attrs": "read-write"}},
            "postgresql://anna:p%40ss%2Fword@/shop?host=h1%3A5432&host=h2%3A5433&target_session_attrs=read-write",
        ),
        (
            {"HOST": "h1,h2", "PORT": "5433", "OPTIONS": {}},
            "postgresql://anna:p%40ss%2Fword@/shop?host=h1%3A5433&host=h2%3A5433",
        ),
    ],
)
def test_the_entry_of_databases_becomes_a_url(changed: dict[str, object], url: str) -> None:
    from django.db import connections

    found = {
        "NAME": "shop",
        "USER": "anna",
        "PASSWORD": "p@ss/word",
        "HOST": "db.example",
        "PORT": "5433",
        "OPTIONS": {"sslmode": "require", "pool": True, "isolation_level": 2},
        **changed,
    }
    connection = connections["default"]
    before, vendor = connection.settings_dict, connection.vendor
    try:
        connection.settings_dict, connection.vendor = {**before, **found}, "postgresql"
        place = place_of("default")
    finally:
        connection.settings_dict, connection.vendor = before, vendor
    assert place.url.render_as_string(hide_password=False) == url
    assert not place.own


def test_the_router_sends_the_tables_where_the_store_is(monkeypatch: pytest.MonkeyPatch) -> None:
    router = WheelRouter()
    assert store_alias() is None
    assert router.allow_migrate("default", "django_wheel") is False
    assert router.allow_migrate("default", "auth") is None
    with pytest.raises(ImproperlyConfigured, match="in no entry of DATABASES"):
        router.db_for_read(TimerRow)
    monkeypatch.setitem(celery_app.conf, "wheel_store", "django://other")
    assert router.db_for_read(TimerRow) == "other"
    assert router.allow_migrate("other", "django_wheel") is True
    assert router.allow_migrate("default", "django_wheel") is False


def test_importing_the_package_loads_no_celery() -> None:
    """Django imports the package while it sets itself up."""
    program = "import sys, django_wheel; print('celery' in sys.modules, 'sqlalchemy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "False False"


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


def run_celery(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"DJANGO_SETTINGS_MODULE": "tests.kit.site.settings", "PYTHONPATH": str(ROOT), **environment}
    return run(folder, variables, "-m", "celery", "-A", "tests.kit.site", "wheel", *arguments)


def test_the_doctor_sees_that_the_projects_app_has_the_wheel(tmp_path: Path) -> None:
    found = {one["about"]: one for one in json.loads(run_celery(tmp_path, "doctor", "--json").stdout)["findings"]}
    assert found["app"]["text"] == "its delayed tasks go to the wheel"
    assert found["visibility"]["grade"] == "ok"
    assert found["store"]["grade"] in {"ok", "error"}  # this test needs no store


def test_settings_with_which_django_cannot_start_are_an_error_of_one_line(tmp_path: Path) -> None:
    text = "from tests.kit.site.settings import *\nINSTALLED_APPS = [*INSTALLED_APPS, 'nowhere']\n"
    (tmp_path / "broken.py").write_text(text)
    path = f"{ROOT}{os.pathsep}{tmp_path}"
    done = run_celery(tmp_path, "doctor", DJANGO_SETTINGS_MODULE="broken", PYTHONPATH=path)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    words = "DJANGO_SETTINGS_MODULE must be settings that Django starts with, got No module named"
    assert line.startswith(f"Error: {words}")


PAGE = page("django.md")


def test_the_names_that_the_examples_import_exist() -> None:
    imports = [
        node
        for block in code(PAGE, "python")
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("django_wheel")
    ]
    lines = [line for line in commands(PAGE) if line.startswith("from django_wheel")]
    imports += [node for line in lines for node in ast.walk(ast.parse(line)) if isinstance(node, ast.ImportFrom)]
    assert len(imports) >= 2
    for one in imports:
        assert all(getattr(import_module(str(one.module)), alias.name) for alias in one.names)


@pytest.mark.skipif(django.VERSION < (6, 0), reason="Django has tasks of its own from 6.0 on")
def test_a_task_of_django_waits_on_the_wheel(wheel: VirtualWheel) -> None:
    settings, example = (block for block in code(PAGE, "python") if "TASKS =" in block or "django.tasks" in block)
    order = SimpleNamespace(created_at=datetime.now(UTC), pk=42)
    scope: dict[str, Any] = {"order": order, "timedelta": timedelta}
    exec(settings, scope)  # noqa: S102 - our own page
    with override_settings(TASKS=scope["TASKS"]):
        exec(example, {**scope, "__name__": __name__})  # noqa: S102 - our own page
    assert len(wheel.pending) == 1


def test_the_queries_of_the_page_have_results(store: SqlStore) -> None:
    (example,) = [block for block in code(PAGE, "python") if "from django_wheel import wheel" in block]
    tallied(Holder(store), NOW, task="shop.tasks.remind", task_id="mine")
    scope: dict[str, object] = {"task_id": "mine"}
    exec(example, scope)  # noqa: S102 - our own page
    assert len(scope["page"].items) == 1  # type: ignore[attr-defined]


@pytest.fixture
def rename() -> Iterator[Any]:
    @celery_app.task(name="site.rename", shared=False)
    def task(user_id: int, name: str) -> None:
        user = User.objects.get(pk=user_id)
        user.username = name
        user.save()

    yield task
    celery_app.tasks.pop("site.rename")


@pytest.mark.django_db
def test_a_task_reads_and_writes_in_the_tests_transaction(wheel: VirtualWheel, rename: Any) -> None:
    user = User.objects.create_user("before")
    rename.apply_async((user.pk, "after"), countdown=3600)
    assert wheel.app is celery_app
    wheel.advance(minutes=59)
    user.refresh_from_db()
    assert user.username == "before"
    wheel.advance(minutes=1)
    user.refresh_from_db()
    assert user.username == "after"


@pytest.mark.django_db
def test_a_task_sent_on_commit_is_pending_after_the_commit(
    wheel: VirtualWheel, rename: Any, django_capture_on_commit_callbacks: Callable[..., Any]
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        transaction.on_commit(lambda: rename.apply_async((1, "x"), countdown=60))
        assert wheel.pending == []
    assert [one.task for one in wheel.pending] == ["site.rename"]


def test_the_projects_wheel_shows_what_the_test_sent(wheel: VirtualWheel, rename: Any) -> None:
    result = rename.apply_async((1, "x"), countdown=60)
    assert wheel.is_pending(result)
    assert [one.task_id for one in project_wheel.pending().items] == [result.id]
