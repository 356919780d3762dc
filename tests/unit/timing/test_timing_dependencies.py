"""The package imports the standard library only, checked in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import celery_wheel
from tests.kit.patience import patience

ROOT = Path(celery_wheel.__file__).parents[1]
MODULES = ["", ".arguments", ".clock", ".delayed_operation", ".purgatory", ".system_timer", ".wheel"]

LOOK = """
import sys
before = set(sys.modules)
import celery_wheel.timing{module}
roots = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(sorted(roots - set(sys.stdlib_module_names) - {{"celery_wheel"}}))
print(sorted(name for name in sys.modules if name.startswith("celery_wheel.") and "timing" not in name))
"""


@pytest.mark.parametrize("module", MODULES)
def test_importing_the_timing_package_imports_nothing_but_the_standard_library(module: str) -> None:
    script = LOOK.format(module=module)
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=patience(60)
    )
    assert answer.stdout.split("\n")[:2] == ["[]", "[]"], answer.stdout


def test_the_wheel_has_no_clock_and_no_thread() -> None:
    script = (
        "import sys, types\n"
        "package = types.ModuleType('celery_wheel.timing')\n"
        "import celery_wheel\n"
        "package.__path__ = [celery_wheel.__path__[0] + '/timing']\n"
        "sys.modules['celery_wheel.timing'] = package\n"
        "import celery_wheel.timing.wheel\n"
        "print(sorted({'threading', 'asyncio', 'logging', 'datetime'} & set(sys.modules)))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True, timeout=patience(60), cwd=ROOT
    )
    assert answer.stdout.strip() == "[]"
