"""The examples of docs/testing.md run: their files are written unchanged, and their tests pass."""

import re

import pytest

from celery_wheel.testing import VirtualWheel
from celery_wheel.testing.plugin import MARKER
from tests.kit.manual import page

pytest_plugins = ["pytester"]

DOCS = page("testing.md")
FILES = dict(re.findall(r"```(?:python|ini)\n# (\S+)\n(.*?)```", DOCS, re.DOTALL))


def test_the_examples_run(pytester: pytest.Pytester) -> None:
    assert FILES.keys() == {"shop.py", "test_shop.py", "test_freezing.py", "test_frozen.py", "pytest.ini"}
    for name, text in FILES.items():
        (pytester.path / name).write_text(text, encoding="utf-8")
    pytester.runpytest_subprocess("-p", "no:django", "-W", "error").assert_outcomes(passed=6)


def test_every_name_of_the_wheel_exists() -> None:
    named = set(re.findall(r"\bwheel\.([a-z_]+)", DOCS)) - {"mark"}
    assert {"advance", "run_all", "pending"} <= named - {"wheel"}
    assert all(hasattr(VirtualWheel, name) for name in named - {"ran", "skipped"}), named


def test_every_option_of_the_marker_is_documented() -> None:
    options = set(re.findall(r"(\w+)=", MARKER))
    assert options == {"app", "propagate", "results", "freeze"}
    assert all(f"{option}=" in DOCS for option in options)
