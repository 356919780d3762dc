"""The view ``/metrics`` of a Django project, which its own URLs name."""

from pathlib import Path

import pytest
from django.test import Client

from celery_wheel.store.sql.store import SqlStore
from tests.admin.conftest import renew, shown, tallied, text_of
from tests.kit.holder import NOW, Holder
from tests.kit.manual import code, page
from tests.kit.servers.prometheus import check_metrics

#: The example of docs/metrics.md is the module of URLs of this test: it sets ``urlpatterns``.
[_example] = [block for block in code(page("metrics.md"), "python") if "urlpatterns" in block]
exec(_example)  # noqa: S102 - our own page

pytestmark = pytest.mark.urls(__name__)


def test_the_view_shows_the_totals_of_the_store(client: Client, store: SqlStore) -> None:
    holder = Holder(store)
    tallied(holder, NOW + 1, NOW + 2)
    figures = {"count": 1, "waiting": 1, "largest": [["tenant:1", 1, 0, [0]]], "starving": [], "unreported": []}
    renew(holder, groups=figures)
    answer = client.get("/metrics")
    text = text_of(answer)
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/plain")
    assert 'celery_wheel_pending{queue_name="celery"} 2.0' in text
    assert 'celery_wheel_group_waiting{group="tenant:1"} 1.0' in text
    assert 'celery_wheel_holder{shard="1"} 0.0' in text
    assert check_metrics(text) == ""


def test_another_store_is_read_anew(client: Client, store: SqlStore) -> None:
    assert "celery_wheel_overdue 0.0" in text_of(client.get("/metrics"))


def test_a_store_that_cannot_be_read_is_an_answer_for_people(client: Client, nowhere: Path) -> None:
    assert str(nowhere) in shown(client, "/metrics", 503)


def test_the_view_is_only_read(client: Client) -> None:
    assert client.post("/metrics").status_code == 405
