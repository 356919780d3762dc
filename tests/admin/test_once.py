"""``once`` of Django: a task's marker and its changes are one transaction of one entry of ``DATABASES``."""

from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Group
from django.db import connection
from django.test import override_settings

from celery_wheel.errors import SettingError
from django_wheel.once import once
from django_wheel.once.models import Marker
from tests.kit.site import celery_app

pytestmark = pytest.mark.django_db(transaction=True)


def task_of(then: Callable[[], Any] = lambda: "made") -> Any:
    @celery_app.task(name=f"site.once{len(celery_app.tasks)}", shared=False, throws=(SettingError, ZeroDivisionError))
    @once()
    def make(name: str) -> Any:
        Group.objects.create(name=name)
        return then()

    return make


def names() -> list[str]:
    return list(Group.objects.values_list("name", flat=True))


def test_a_second_copy_changes_nothing_and_returns_the_result_of_the_first() -> None:
    make = task_of()
    assert make.apply(("a",), task_id="1").get() == make.apply(("a",), task_id="1").get() == "made"
    assert (names(), str(Marker.objects.get())) == (["a"], Marker.objects.get().id)


def test_a_try_that_failed_has_changed_nothing_and_is_run_again() -> None:
    errors = [ZeroDivisionError()]

    def then() -> str:
        if errors:
            raise errors.pop()
        return "made"

    make = task_of(then)
    with pytest.raises(ZeroDivisionError):
        make.apply(("a",), task_id="1").get()
    assert (names(), Marker.objects.count()) == ([], 0)
    assert make.apply(("a",), task_id="1").get() == "made"
    assert names() == ["a"]


def test_old_markers_are_removed() -> None:
    Marker.objects.bulk_create(Marker(id=f"{number}", until_ms=number) for number in range(1_500))
    make = task_of()
    for number in range(1_000):  # by its id, one run of a hundred removes some
        make.apply((f"{number}",)).get()
        if Marker.objects.count() < 1_000 + number:
            break
    assert Marker.objects.count() == 501 + number


def test_it_is_refused_before_the_task_runs_without_its_app_or_its_table() -> None:
    others = [name for name in settings.INSTALLED_APPS if name != "django_wheel.once"]
    with override_settings(INSTALLED_APPS=others), pytest.raises(SettingError, match="the table of once"):
        task_of().apply(("a",)).get()
    with connection.schema_editor() as editor:
        editor.delete_model(Marker)
    try:
        with pytest.raises(SettingError, match=r"run: python manage.py migrate django_wheel_once --database=default$"):
            task_of().apply(("a",)).get()
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(Marker)
    assert names() == []
