"""Views under ATOMIC_REQUESTS, Django's test cases that roll back, and processes without Django.

The example of docs/transactional.md runs, and the checks that the page names exist.
"""

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

import django
import pytest
from django.contrib.auth.models import Group
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client, TestCase, override_settings
from django.urls import path

import django_wheel.checks
from celery_wheel import CommandResult
from celery_wheel.testing import VirtualWheel
from tests.admin.transactional.conftest import ALIAS, Shop
from tests.admin.transactional.test_scheduling import groups, send
from tests.kit.manual import ROOT, page
from tests.kit.site import celery_app


def order(request: HttpRequest) -> HttpResponse:
    Group.objects.using(ALIAS).create(name="order")
    send("ordered")
    if "fail" in request.GET:
        raise ZeroDivisionError
    return HttpResponse()


@transaction.non_atomic_requests(using=ALIAS)
def at_once(request: HttpRequest) -> HttpResponse:
    send("at once")
    raise ZeroDivisionError


urlpatterns = [path("order", order), path("at-once", at_once)]


@pytest.mark.parametrize(("url", "found"), [("/order", ["ordered"]), ("/order?fail=1", []), ("/at-once", ["at once"])])
def test_a_view_is_one_transaction_under_atomic_requests(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, url: str, found: list[str]
) -> None:
    monkeypatch.setitem(connections.settings[ALIAS], "ATOMIC_REQUESTS", True)
    with override_settings(ROOT_URLCONF=__name__):
        Client(raise_request_exception=False).get(url)
    assert shop.waiting() == found
    assert groups() == (["order"] if found == ["ordered"] else [])


def test_a_test_case_leaves_nothing_behind(shop: Shop) -> None:
    during: list[int] = []

    class Ordering(TestCase):
        databases = {ALIAS}  # noqa: RUF012 - as Django's manual writes it

        def test_it(self) -> None:
            with transaction.atomic(using=ALIAS):
                send()
            during.append(len(_items_seen_inside()))

    result = unittest.TestResult()
    unittest.TestSuite([Ordering("test_it")]).run(result)
    assert result.wasSuccessful(), result.errors
    assert (during, shop.waiting()) == ([1], [])


def _items_seen_inside() -> list[Any]:
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("SELECT id FROM wheel_inbox")
        return list(cursor.fetchall())


def test_the_fixture_wheel_accepts_tasks_at_once_whatever_the_store(shop: Shop, wheel: VirtualWheel) -> None:
    with transaction.atomic(using=ALIAS):
        send("a")
        send("b", countdown=None, wheel={"transactional": True})
        assert [one.id for one in wheel.pending] == ["b", "a"]
    assert [one.id for one in wheel.advance(minutes=2)] == ["b", "a"]
    with transaction.atomic(using=ALIAS):
        send("c")
        assert celery_app.wheel.cancel("c", transactional=True).result() is CommandResult.DONE
    assert (shop.waiting(), wheel.pending) == ([], [])


@pytest.mark.parametrize(
    ("before", "says"),
    [
        ("sys.modules['django'] = None", r"cannot be imported .* run: pip install 'celery-wheel\[django\]'"),
        ("", r"Django, which is not set up in this process .* call django.setup\(\)"),
        (
            "import django; from django.conf import settings; settings.configure(DATABASES={'default': {'ENGINE': "
            "'django.db.backends.sqlite3', 'NAME': 'x'}}); django.setup()",
            r'needs INSTALLED_APPS \+= \["django_wheel"\]',
        ),
    ],
    ids=["not installed", "not configured", "not listed"],
)
def test_without_django_the_error_of_the_call_names_the_missing_part(before: str, says: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys\n{before}\nfrom celery_wheel import Celery\napp = Celery('x', broker='memory://')\n"
        "app.conf.update(wheel_store='django://default', wheel_transactional=True)\n"
        "app.send_task('task', countdown=5)\n"
    )
    environment = {"PYTHONPATH": str(Path(__file__).parents[3]), "PATH": ""}
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "SettingError" in last
    assert re.search(says, last), last


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
