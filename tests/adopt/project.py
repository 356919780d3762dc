"""A project that ``make adopt`` tries: its configuration, and the tasks of its own that are delayed.

::

    project.files(place)        the project's configuration, with the two lines of the documentation
    project.start(app)          lets the project send a delayed task of its own, ``waits``
    project.fail(app)           lets it send a task of its own whose first tries a server refuses, ``retries``

A project that is a package has no settings file of its own to edit. So its two lines are in a module of settings that
imports the project's, which is what its administrator would write. ``LINES`` are the two of docs/django.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LINES = 'INSTALLED_APPS += ["django_wheel"]\nCELERY_BEAT_SCHEDULER = "wheel"\n'
#: Where an app reads its settings without a namespace, Celery knows the old names alone.
OLD_LINES = LINES.replace("CELERY_BEAT_SCHEDULER", "CELERYBEAT_SCHEDULER")


@dataclass(frozen=True, slots=True)
class Place:
    """A throw-away installation: its folder, its broker, and the port of the server that is too busy for it."""

    folder: Path
    broker: str
    busy_port: int


@dataclass(frozen=True, slots=True)
class Project:
    """A project of the package index.

    Args:
        app: the module of its Celery app.
        settings: the module of settings that the site uses.
        files: the files of the site by name, for the site's place.
        start: lets the project send ``waits`` with a delay.
        fail: lets the project send ``retries``, which calls the busy server.
        busy: what the busy server speaks.
        suite: settings of the project's own tests.
        tests: its tests of Celery tasks; paths in its sdist, or in its package where ``packaged``.
        refused: tries of ``retries`` that the busy server refuses; the wait before the next one is watched.
        commands: Python's arguments that prepare the site, before migrations.
        environment: variables of every process; ``{folder}`` is the site's.
        worker: arguments of its worker.
        lines: the two lines.
        root: the folder of the site from which its modules are imported.
    """

    app: str
    settings: str
    files: Callable[[Place], Mapping[str, str]]
    start: Callable[[Any], None]
    waits: str
    fail: Callable[[Any], None]
    retries: str
    busy: Callable[..., Any]
    suite: str
    tests: tuple[str, ...]
    refused: int = 1
    commands: tuple[tuple[str, ...], ...] = ()
    environment: Mapping[str, str] | None = None
    worker: tuple[str, ...] = ()
    lines: str = LINES
    packaged: bool = False
    root: str = "."
