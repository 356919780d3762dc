"""Changes of schedules inside real transactions, and async twins under Django's ASGI handler."""

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.handlers.asgi import ASGIRequest
from django.db import transaction
from django.http import HttpResponse, JsonResponse
from django.test import AsyncClient, override_settings
from django.urls import path

from celery_wheel import NotCommitted, TransactionalRequest
from celery_wheel.errors import RecurrenceError, ScheduleExists
from celery_wheel.recurring import Crontab
from celery_wheel.requests.results import ScheduleAnswer
from tests.admin.transactional.conftest import ALIAS, Shop
from tests.admin.transactional.test_scheduling import failing
from tests.kit.site import celery_app

NINE = Crontab("0", "9")
DONE, ALREADY = ScheduleAnswer("done"), ScheduleAnswer("already")


def names() -> list[str]:
    return [one.name for one in celery_app.wheel.schedules.list(source="api")]


def test_changes_are_part_of_the_transaction(live: Shop) -> None:
    schedules = celery_app.wheel.schedules
    assert schedules.create("kept", NINE, "site.nothing") == DONE
    with failing():
        schedules.delete("kept")
        schedules.create("never", NINE, "site.nothing")
    with transaction.atomic(using=ALIAS):
        created: Any = schedules.create("report", NINE, "site.nothing")
        paused = schedules.pause(["kept", "report"], "holidays", transactional=True)
        many: Any = schedules.create_many(
            {name: {"recurrence": NINE, "task": "site.nothing"} for name in ("report", "a", "b")}
        )
        changed: Any = schedules.update(schedules.where(prefix="ke"), queue="mail")
        assert isinstance(paused, TransactionalRequest)
        with pytest.raises(RecurrenceError, match="schedule 'c': args must be a list like"):
            schedules.create_many({"c": {"recurrence": NINE, "task": "site.nothing", "args": 1}})
        with pytest.raises(NotCommitted, match="still open, or was rolled back"):
            created.result()
        assert names() == ["kept"]
    assert created.result() == DONE
    assert paused.result() == {"kept": DONE, "report": DONE}
    assert many.result() == {"report": ALREADY, "a": DONE, "b": DONE}
    assert changed.result() == {"kept": DONE}
    assert names() == ["a", "b", "kept", "report"]
    assert schedules.get("kept").options == {"queue": "mail"}
    with pytest.raises(ScheduleExists):
        schedules.create("report", NINE, "site.nothing", transactional=False)


async def order(request: ASGIRequest) -> HttpResponse:
    wheel = celery_app.wheel
    answer = await wheel.schedules.acreate("ordered", NINE, "site.nothing", exists="update")
    found, pending = await wheel.schedules.aget("ordered"), await wheel.apending()
    return JsonResponse({"result": answer.result, "revision": found.revision, "tasks": len(pending.items)})


urlpatterns = [path("order", order)]


def test_a_view_under_asgi_awaits_the_twins(live: Shop) -> None:
    async def get() -> Any:
        return (await AsyncClient().get("/order")).json()

    with override_settings(ROOT_URLCONF=__name__):
        assert async_to_sync(get)() == {"result": "done", "revision": 1, "tasks": 0}


def test_a_twin_joins_the_transaction_of_the_synchronous_code_around_it(live: Shop) -> None:
    async def create(name: str) -> Any:
        return await celery_app.wheel.schedules.acreate(name, NINE, "site.nothing")

    assert names() == []  # opens the store here: in a thread of another test the alias may name another database
    with failing():
        async_to_sync(create)("never")
    with transaction.atomic(using=ALIAS):
        created = async_to_sync(create)("report")
        assert isinstance(created, TransactionalRequest)
    assert async_to_sync(created.aresult)() == DONE
    assert names() == ["report"]
