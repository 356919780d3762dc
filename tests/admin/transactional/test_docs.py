"""The example of docs/transactional.md runs, and the checks that the page names exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import django
import pytest

import django_wheel.checks
from tests.kit.manual import ROOT, page

DOCS = page("transactional.md")


@pytest.mark.skipif(django.VERSION < (5, 1), reason="transaction_mode is new in Django 5.1")
def test_the_example_has_the_result_that_the_manual_states(tmp_path: Path) -> None:
    [program] = re.findall(r"```python\n# shop.py\n(.*?)```", DOCS, re.DOTALL)
    [says] = re.findall(r"```text\n(.*?)```", DOCS, re.DOTALL)
    (tmp_path / "shop.py").write_text(program, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    del environment["DJANGO_SETTINGS_MODULE"]
    command = [sys.executable, "-W", "error", "shop.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (says, "")


def test_every_check_that_the_page_names_exists() -> None:
    source = Path(django_wheel.checks.__file__).read_text(encoding="utf-8")
    named = set(re.findall(r"\b[EW]\d{3}\b", DOCS))
    assert named == {"E013", "W005"}
    assert all(f"django_wheel.{one}" in source for one in named)
