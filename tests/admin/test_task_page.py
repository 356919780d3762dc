"""The page of a task: its title, its life as a timeline, and its headers."""

import re
import threading
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
from celery.backends.cache import CacheBackend
from django.test import Client
from freezegun import freeze_time

from celery_wheel.store.model import ORIGIN, PAUSED, Gate, LaneState, Move
from celery_wheel.store.sql.store import SqlStore
from django_wheel.views import task as asking
from django_wheel.views.task import events, timeline
from tests.admin.conftest import ADMIN, end, shown, unreadable
from tests.contract.stores.test_groups_browsing import wait
from tests.kit.holder import NOW, Holder, place
from tests.kit.patience import patience
from tests.kit.site import celery_app

TASK = f"{ADMIN}/pending"
LATER = "2027-01-15 08:01:00"  #: a minute after NOW

pytestmark = pytest.mark.usefixtures("still")


def life(text: str) -> list[str]:
    """Return the labels of the timeline's events with their texts, in order."""
    listed = text.split('<ol class="wheel-events">')[1].split("</ol>")[0]
    found = re.findall(r"<div><strong>(.*?)</div>", listed, re.DOTALL)
    return [" ".join(unescape(re.sub("<[^>]*>", "", one)).split()) for one in found]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[CacheBackend]:
    found = CacheBackend(celery_app, backend="memory")
    monkeypatch.setattr(type(celery_app), "backend", found)
    yield found
    found.client.flush_all() if hasattr(found.client, "flush_all") else found.client.cache.clear()


def test_the_title_is_the_name_and_the_id(viewer: Client, holder: Holder) -> None:
    (row,) = holder.accept(NOW, task_id="order-17")
    text = shown(viewer, f"{TASK}/{row.id}/")
    assert "<h1>app.remind order-17</h1>" in text
    assert f"Task {row.id}" not in text
    assert "<h1>Unreadable message</h1>" in shown(viewer, f"{TASK}/{unreadable(holder).id}/")


def test_a_moved_task_was_sent_accepted_moved_and_is_due(viewer: Client, holder: Holder) -> None:
    (row,) = holder.accept(NOW + 5_000, created_ms=NOW - 60_000)
    moved = Move(row.id, 0, NOW + 90_000, holder.seq(), NOW + 90_000)
    holder.apply(moves=[moved], outcomes=[holder.outcome(row.id, "moved", NOW)])
    text = shown(viewer, f"{TASK}/{row.id}/")
    assert life(text) == ["Sent by the producer", "Accepted: stored by the wheel", "Moved asked for by somebody", "Due"]
    assert "+ 1 min" in text
    assert ">in 1 min<" in text
    assert "wheel-now" in text


def test_a_task_behind_a_pause_is_held_since_it_was_due(viewer: Client, holder: Holder) -> None:
    holder.apply(gates=[Gate("queue", "celery", PAUSED, 0, "provider is down", "anna", NOW - 90_000)])
    holder.apply(lanes=[LaneState(3, ORIGIN, ORIGIN, "celery", False, "queue")])
    (row,) = holder.accept(NOW - 30_000, lane=3, created_ms=NOW - 200_000)
    holder.apply()
    text = shown(viewer, f"{TASK}/{row.id}/")
    assert life(text)[-1] == "Held by the pause of queue celery provider is down by anna"
    assert "waits for celery" in text
    # The pause ends: the task leaves its lane, and the page still tells that a gate held it.
    holder.apply(opened=[("queue", "celery")])
    holder.settle(ORIGIN, place(row), at_ms=NOW, lane=3)
    holder.apply(lanes=[LaneState(3, place(row), place(row), "celery", False, "queue")])
    assert life(shown(viewer, f"{TASK}/{row.id}/"))[-2:] == ["Held by a gate: queue celery", "Dispatched 30 s late"]


@pytest.mark.parametrize(
    ("group", "words"),
    [("tenant:7", "aits in group tenant:7 for queue celery"), (None, "aits for room in queue celery")],
)
def test_a_task_of_a_line_says_for_which_group_it_waits(
    viewer: Client, holder: Holder, group: str | None, words: str
) -> None:
    rows = holder.accept(NOW - 30_000, group=group)
    wait(holder, 5, group or "", rows, queue="celery")
    text = shown(viewer, f"{TASK}/{rows[0].id}/")
    assert life(text)[-1] == f"W{words}"
    assert f"w{words}" in text.split("wheel-headline")[1].split("</p>")[0]


@freeze_time(LATER)
def test_a_task_after_lost_writes_is_dispatched_and_redelivered(viewer: Client, holder: Holder) -> None:
    (row,) = holder.accept(NOW + 1_000)
    for at_ms in (NOW + 1_100, NOW + 9_000):
        holder.settle(ORIGIN, place(row), at_ms=at_ms)
    text = shown(viewer, f"{TASK}/{row.id}/")
    assert life(text)[-2:] == ["Dispatched 100 ms late", "Redelivered It may be a second copy."]


@pytest.mark.parametrize(("kind", "label"), [("cancelled", "Cancelled"), ("rejected", "Rejected")])
def test_an_outcome_ends_the_life(viewer: Client, holder: Holder, kind: str, label: str) -> None:
    (row,) = holder.accept(NOW + 60_000)
    end(holder, row, kind)
    text = shown(viewer, f"{TASK}/{row.id}/")
    assert life(text)[-1] == f"{label} asked for by somebody"
    assert '<path class="wheel-now"' not in text


@freeze_time(LATER)
def test_the_backend_tells_the_end_and_never_the_result(viewer: Client, holder: Holder, backend: CacheBackend) -> None:
    rows = holder.accept(NOW + 1_000, NOW + 2_000)
    holder.settle(ORIGIN, place(rows[1]), at_ms=NOW + 2_100)
    assert life(shown(viewer, f"{TASK}/{rows[0].id}/"))[-1].startswith("Dispatched")
    backend.store_result(rows[0].message.task_id, {"secret": 42}, "SUCCESS")
    text = shown(viewer, f"{TASK}/{rows[0].id}/")
    assert life(text)[-1] == "Execution ended: SUCCESS"
    assert "secret" not in text
    backend.store_result(rows[1].message.task_id, None, "STARTED")
    text = shown(viewer, f"{TASK}/{rows[1].id}/")
    assert "result backend: STARTED" in text
    assert life(text)[-1].startswith("Dispatched")


@freeze_time(LATER)
def test_a_backend_that_fails_is_named(
    viewer: Client, holder: Holder, backend: CacheBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    (row,) = holder.accept(NOW + 1_000)
    holder.settle(ORIGIN, place(row), at_ms=NOW + 2_100)

    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("nobody there")

    monkeypatch.setattr(backend, "get_task_meta", refuse)
    text = unescape(shown(viewer, f"{TASK}/{row.id}/"))
    assert "The result backend could not be read: nobody there." in text


@freeze_time(LATER)
def test_a_backend_that_hangs_takes_one_thread_which_lets_the_process_end(
    viewer: Client, holder: Holder, backend: CacheBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    (row,) = holder.accept(NOW + 1_000)
    holder.settle(ORIGIN, place(row), at_ms=NOW + 2_100)
    released, real = threading.Event(), backend.get_task_meta
    monkeypatch.setattr(backend, "get_task_meta", lambda *_, **__: released.wait(60) and real(row.message.task_id))
    monkeypatch.setattr(asking, "WAIT_S", 0.01)
    for _ in range(3):
        assert "did not answer within a second" in shown(viewer, f"{TASK}/{row.id}/")
    assert [one.daemon for one in threading.enumerate() if one.name.startswith("wheel-task-result")] == [True]
    released.set()
    monkeypatch.setattr(asking, "WAIT_S", patience())
    assert "The result backend" not in shown(viewer, f"{TASK}/{row.id}/")


def test_headers_are_folded_and_without_nulls(viewer: Client, holder: Holder) -> None:
    (row,) = holder.accept(NOW, headers=b'{"shadow": null, "lang": "py", "group": null}')
    text = unescape(shown(viewer, f"{TASK}/{row.id}/"))
    assert '"lang": "py"' in text.split("<summary>Headers")[1].split("</details>")[0]
    assert "shadow" not in text


@pytest.mark.parametrize("language", ["de", "he"])
def test_places_of_drawings_have_a_decimal_point_in_every_language(
    viewer: Client, holder: Holder, settings: Any, language: str
) -> None:
    settings.LANGUAGE_CODE = language
    settings.USE_THOUSAND_SEPARATOR = True
    rows = holder.accept(NOW - 9_100, NOW - 5_000, NOW - 1_700, created_ms=NOW - 20_000)
    holder.settle(ORIGIN, place(rows[1]), at_ms=NOW - 4_000)
    holder.settle(place(rows[1]), place(rows[2]), at_ms=NOW - 1_234)
    for address in (f"{TASK}/{rows[0].id}/", f"{ADMIN}/history/"):
        places = re.findall(r' (?:x|y|cx|cy|x1|x2|y1|y2|width|height)="([^"]*)%"', shown(viewer, address))
        assert any("." in one for one in places)
        assert all(0 <= float(one) <= 100 for one in places)


def test_the_bars_of_a_life_fill_it_without_a_gap(holder: Holder, store: SqlStore) -> None:
    (row,) = holder.accept(NOW + 9_000, created_ms=NOW - 20_000)
    holder.settle(ORIGIN, place(row), at_ms=NOW + 9_100)
    detail = store.browse.detail(row.id)
    assert detail is not None
    drawn = timeline(events(detail, [], None, NOW + 60_000), NOW + 60_000, goes_on=False)
    lengths = [(one.stage.key, one.length_ms) for one in drawn.bars]
    assert lengths == [("broker", 20_000), ("pending", 9_000), ("overdue", 100)]
    assert sum(one.width for one in drawn.bars) == pytest.approx(100, abs=0.05)
    assert drawn.rows[-1][0].kind == "dispatched"


def test_a_pending_task_of_a_long_life_ends_at_its_due_time_and_shows_now(holder: Holder, store: SqlStore) -> None:
    (row,) = holder.accept(NOW + 80_000, created_ms=NOW - 20_000)
    detail = store.browse.detail(row.id)
    assert detail is not None
    drawn = timeline(events(detail, [], None, NOW), NOW, goes_on=True)
    assert (drawn.axis.from_ms, drawn.axis.to_ms, drawn.now) == (NOW - 20_000, NOW + 80_000, 20.0)
    assert [(one.x, one.width) for one in drawn.bars] == [(0.0, 20.0)]
