"""Celery's own tests of tasks, apps, canvas, beat and amqp, with the wheel's app in Celery's place.

They are not part of the installed package, nor of this project. CELERY_SOURCE names a folder that has them::

    pip download --no-deps --no-binary celery celery==5.7.0 && tar xzf celery-5.7.0.tar.gz
    pip install pydantic
    CELERY_SOURCE=$PWD/celery-5.7.0 python -m pytest tests/integration/interception/test_celery_suite.py

Each kind of failure that the suite revealed has a test of its own, which always runs:
``tests/unit/producer/test_send_apps.py``, ``test_send_install.py`` and ``test_send_native.py``.
"""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

SOURCE = os.environ.get("CELERY_SOURCE", "")
ROOT = Path(__file__).parents[3]
PARTS = ("t/unit/tasks", "t/unit/app")

#: With fewer passed tests than this, pytest has not found all of them.
MIN_TESTS = 1_000

pytestmark = [
    pytest.mark.skipif(not SOURCE, reason="CELERY_SOURCE names no folder with Celery's tests; this file says how"),
    pytest.mark.timeout(1_800),
]

WAITS = "it reads a task with an eta from the task's own queue, where the wheel puts it when it is due"
INSTANT = "it looks at what comes to the class below: of a delay that the wheel takes, an instant and a task id"

WAITING = {"t.unit.tasks.test_tasks.test_tasks::test_regular_task": WAITS}
BELOW = {"t.unit.app.test_beat.test_Scheduler::test_send_task": INSTANT}

#: Tests of Celery's that fail because the wheel changes the behaviour that they check.
EXPLAINED: dict[str, dict[str, str]] = {
    "subclass": WAITING,
    "installed": WAITING | BELOW,
    "installed, with a send_task of its own": WAITING | BELOW,
}


@cache
def failed(how: str, folder: Path) -> frozenset[str]:
    """Return Celery's own tests that do not pass with such an app."""
    report = folder / f"{how}.xml"
    plugins = ("no:randomly", "no:celery_wheel", "no:django", "no:xdist", "no:cacheprovider")
    command = [sys.executable, "-P", "-m", "pytest", "-p", "tests.integration.interception.celery_in_place"]
    command += [argument for plugin in plugins for argument in ("-p", plugin)]
    command += ["-o", "addopts=", "--timeout=60", "-q", "--tb=short", f"--junitxml={report}", *PARTS]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CELERY_"))}
    environment |= {
        "CELERY_IN_PLACE": how,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(command, cwd=SOURCE, env=environment, capture_output=True, text=True)
    assert done.returncode in (0, 1), f"Celery's tests could not be run:\n{done.stdout[-3000:]}{done.stderr[-1000:]}"
    cases = ElementTree.parse(report).getroot().iter("testcase")  # noqa: S314  # made by the pytest above
    outcomes = {f"{one.get('classname')}::{one.get('name')}": {part.tag for part in one} for one in cases}
    assert len(outcomes) >= MIN_TESTS, sorted(outcomes)[:5]
    return frozenset(test for test, parts in outcomes.items() if parts & {"failure", "error"})


@pytest.mark.parametrize("how", EXPLAINED)
def test_celerys_own_tests_pass_but_for_the_explained_ones(how: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    assert failed(how, folder) - failed("plain", folder) == EXPLAINED[how].keys()
