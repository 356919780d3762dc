"""A plugin for the pytest that runs Celery's own tests: it replaces Celery's app by the wheel's; see CELERY_IN_PLACE.

The plugin is loaded before any test, so names that the tests import are replaced already.
"""

import os
from typing import Any

import celery
import celery.app
import celery.app.base
import celery.contrib.testing.app

import celery_wheel

Plain: Any = celery.Celery


class Overriding(Plain):  # type: ignore[misc]
    """A project's own class, with the most frequent override."""

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        return super().send_task(name, args, kwargs, **options)


def replace(kind: Any) -> None:
    for module in (celery, celery.app, celery.app.base, celery.contrib.testing.app):
        module.Celery = kind


def install_all() -> None:
    make = Plain.__init__

    def make_and_install(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        celery_wheel.install(self)

    Plain.__init__ = make_and_install


how = os.environ["CELERY_IN_PLACE"]
if how == "subclass":
    replace(celery_wheel.Celery)
elif how == "installed":
    install_all()
elif how == "installed, with a send_task of its own":
    Overriding.__name__ = Overriding.__qualname__ = "Celery"
    Overriding.__module__ = Plain.__module__
    replace(Overriding)
    install_all()
