"""The fixture ``wheel`` in a Django project: the app is found, and tasks run in the test's own transaction."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from celery_wheel.testing import VirtualWheel
from django_wheel import wheel as project_wheel
from tests.kit.site import celery_app


@pytest.fixture
def rename() -> Iterator[Any]:
    @celery_app.task(name="site.rename", shared=False)
    def task(user_id: int, name: str) -> None:
        user = User.objects.get(pk=user_id)
        user.username = name
        user.save()

    yield task
    celery_app.tasks.pop("site.rename")


@pytest.mark.django_db
def test_a_task_reads_and_writes_in_the_tests_transaction(wheel: VirtualWheel, rename: Any) -> None:
    user = User.objects.create_user("before")
    rename.apply_async((user.pk, "after"), countdown=3600)
    assert wheel.app is celery_app
    wheel.advance(minutes=59)
    user.refresh_from_db()
    assert user.username == "before"
    wheel.advance(minutes=1)
    user.refresh_from_db()
    assert user.username == "after"


@pytest.mark.django_db
def test_a_task_sent_on_commit_is_pending_after_the_commit(
    wheel: VirtualWheel, rename: Any, django_capture_on_commit_callbacks: Callable[..., Any]
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        transaction.on_commit(lambda: rename.apply_async((1, "x"), countdown=60))
        assert wheel.pending == []
    assert [one.task for one in wheel.pending] == ["site.rename"]


def test_the_projects_wheel_shows_what_the_test_sent(wheel: VirtualWheel, rename: Any) -> None:
    result = rename.apply_async((1, "x"), countdown=60)
    assert wheel.is_pending(result)
    assert [one.task_id for one in project_wheel.pending().items] == [result.id]
