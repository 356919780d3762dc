"""``INSTALLED_APPS += ["django_wheel"]`` is enough: it installs the wheel in apps, and chooses the store."""

import subprocess
import sys
from pathlib import Path

import celery
import pytest
from celery import Celery
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from celery_wheel.app import WheelApp
from celery_wheel.beat import WheelScheduler
from celery_wheel.conf import Conf
from django_wheel import project
from django_wheel.database import WheelRouter, place_of, store_alias
from django_wheel.models import TimerRow
from tests.kit.site import celery_app

ROOT = Path(__file__).parents[2]


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
