"""Pages of any number of shards and names read them together: few statements, whatever the filter."""

from collections import Counter
from pathlib import Path

import pytest
from django.test import Client

from celery_wheel import overview
from celery_wheel.store import open_store
from celery_wheel.store.model import HOUR_MS, ORIGIN, LaneState, TallyKey
from celery_wheel.store.sql.browse import pages
from celery_wheel.store.sql.store import SqlStore
from django_wheel.project import project_wheel
from tests.admin.conftest import ADMIN, Configure, end, shown
from tests.kit.counts import reads_of
from tests.kit.holder import NOW, Holder, hour_of, place

MOST = 12
#: Most statements of the part of the wheel's page that a browser reads each second; three of them look for herds, and
#: run in at most a hundredth of the time.
MOST_OF_A_POLL = 11
#: The first lane of each shard is for all tasks, the others are those of a destination that does not answer.
LANES = 4
HOURS = 40

TASK, QUEUE = "task=app.task_1", "queue=queue_1"
TIMES = f"from={NOW - HOUR_MS}&to={NOW + 20 * HOUR_MS}"
FILTERS = ["", TASK, QUEUE, f"{TASK}&{QUEUE}", f"{TASK}&{TIMES}", TIMES, "task=app.nobody", "shard=0"]
ADDRESSES = [f"{page}/?{one}" for page in ("pending", "history", "rejected") for one in FILTERS]


@pytest.fixture(scope="module", params=[1, 64])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("store")
    store = open_store(f"sqlite:///{folder}/wheel.sqlite3", shards=request.param, durability="memory")
    for shard in range(request.param):
        fill(Holder(store, shard))
    store.close()
    return f"sqlite:///{folder}/wheel.sqlite3"


def fill(holder: Holder) -> None:
    """Accept tasks of two names in each lane: three are dispatched, one is rejected, and others wait in every hour."""
    for lane in range(LANES):
        target = f"broker {lane}" if lane else None
        names = [{"task": f"app.task_{n % 2}", "queue": f"queue_{n % 2}", "lane": lane} for n in range(HOURS + 4)]
        dues = [NOW - 2, NOW - 2, NOW - 1, NOW - 1, *[NOW + n * HOUR_MS for n in range(HOURS)]]
        rows = [holder.row(due, **parts) for due, parts in zip(dues, names, strict=True)]
        lanes = [LaneState(lane, ORIGIN, ORIGIN, target)]
        holder.apply(rows=rows, lanes=lanes, tally=Counter(hour_of(row) for row in rows[4:]))
        end(holder, rows[1])
        upto = place(rows[3])
        settlement = holder.settlement(ORIGIN, upto, lane=lane)
        holder.apply(settlements=[settlement], lanes=[LaneState(lane, upto, upto, target)])
    if holder.shard == 0:
        holder.apply(tally={TallyKey(NOW // HOUR_MS, f"queue_{n % 20}", f"app.name_{n}"): 1 for n in range(400)})


@pytest.fixture
def opened(filled: str, conf: Configure) -> SqlStore:
    """Return the store as the pages have it, opened before a page counts its statements."""
    conf(wheel_store=filled)
    found = project_wheel().store
    assert isinstance(found, SqlStore)
    found.browse.pending(pages.Criteria())
    return found


@pytest.mark.parametrize("address", [*ADDRESSES, "settlement/", "shard/", "wheel/", "wheel/live/", "pending/?q=task-1"])
def test_a_page_takes_a_dozen_statements_whatever_the_shards(viewer: Client, opened: SqlStore, address: str) -> None:
    with reads_of(opened) as statements:
        shown(viewer, f"{ADMIN}/{address}")
    assert 0 < len(statements) <= (MOST_OF_A_POLL if address == "wheel/live/" else MOST)


@pytest.mark.slow
def test_a_filter_of_many_rows_takes_as_few(viewer: Client, opened: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "SCAN", 1)
    monkeypatch.setattr(pages, "SCAN_LEAST", 1)
    for address in ADDRESSES:
        with reads_of(opened) as statements:
            shown(viewer, f"{ADMIN}/{address}")
        assert 0 < len(statements) <= MOST, address


def test_a_second_look_within_a_second_reads_nothing_of_the_whole_store(
    viewer: Client, opened: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown(viewer, f"{ADMIN}/wheel/live/")
    monkeypatch.setattr(overview, "FRESH_S", 3_600)
    with reads_of(opened) as statements:
        polls = [shown(viewer, f"{ADMIN}/wheel/live/") for _ in range(3)]
    assert polls == [polls[0]] * 3
    # A process checks once a second that the store is still the same, and reads nothing else.
    assert all("wheel_meta" in one for one in statements)
    with reads_of(opened) as statements:
        shown(viewer, f"{ADMIN}/pending/")
        shown(viewer, f"{ADMIN}/history/")
    assert not [one for one in statements if "wheel_total" in one or "wheel_tally" in one]
