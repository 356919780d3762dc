"""The line that ``celery wheel move`` prints can be pasted into the settings of the project, and has no password."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_wheel.conf import Conf
from celery_wheel.operations.stores import settings_line
from celery_wheel.values.text import is_store_url


def conf(source: Any = None, namespace: str | None = None) -> Conf:
    app = Celery("proj", set_as_current=False)
    if source is not None:
        app.config_from_object(source, namespace=namespace)
    return Conf(app)


@pytest.mark.parametrize(
    ("of_app", "name"),
    [
        (conf(), "app.conf.wheel_store"),
        (conf(SimpleNamespace(timezone="UTC")), "wheel_store"),
        (conf(SimpleNamespace(CELERY_TIMEZONE="UTC"), "CELERY"), "CELERY_WHEEL_STORE"),
    ],
)
def test_the_line_has_the_name_that_the_app_reads(of_app: Conf, name: str) -> None:
    assert settings_line(of_app, "django://default") == f'{name} = "django://default"'


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("postgresql://anna@db.example:5433/shop", "postgresql://anna@db.example:5433/shop"),
        ("postgres://anna:s3cret@db.example/shop", "postgresql://anna:PASSWORD@db.example/shop"),
        ("postgresql://anna@h/shop?sslpassword=s3cret", "postgresql://anna@h/shop?sslpassword=PASSWORD"),
        ("postgresql://anna:s3cret@h1,h2:5433/shop", "postgresql://anna:PASSWORD@/shop?host=h1&host=h2%3A5433"),
        ("sqlite:////var/lib/wheel.sqlite3", "sqlite:////var/lib/wheel.sqlite3"),
        ("sqlite:///wheel.sqlite3", f"sqlite:///{Path.cwd()}/wheel.sqlite3"),
    ],
)
def test_the_url_names_the_same_store_without_its_password(given: str, printed: str) -> None:
    assert settings_line(conf(), given) == f'app.conf.wheel_store = "{printed}"'
    assert is_store_url(printed)
