"""The time of pages over a large store, in milliseconds: the queries of ``browse``, warm, the best of a few.

::

    fill    N pending at random due times of 30 days; N / 2 dispatched, in N / 100 settlements; N / 200 rejected
            100 tasks, 20 queues, an hour of each in the tally       one task in three is ``FREQUENT``, ten are ``RARE``
    ask     each query of ``questions`` a few times; then the admin's pages through Django's test client

The store is made by ``--store URL``'s database, or a new SQLite file.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from celery_wheel.console.output import progress
from celery_wheel.operations.figure import Figure
from celery_wheel.overview import read_overview
from celery_wheel.store import open_store
from celery_wheel.store.model import HOUR_MS, ORIGIN, Position
from celery_wheel.store.ports.pages import END, Criteria, Page
from celery_wheel.store.sql.store import SqlStore
from tests.benchmarks.filler import LEASE_MS, NOW, Filler

SHARDS = int(os.environ.get("BENCH_SHARDS", "1"))
DAYS = 30
GROUP = 5_000
SETTLED_AT_ONCE = 50
FREQUENT, RARE = "bench.frequent", "bench.rare"
RARE_ROWS = 10
TIMES = 5
TARGET_MS = 100

Question = Callable[[SqlStore], object]


def run(folder: Path, rows: int) -> Iterator[Figure]:
    url = os.environ.get("BENCH_STORE") or f"sqlite:///{folder}/wheel.sqlite3"
    store = open_store(url, shards=SHARDS, durability="memory")
    try:
        fill(store, rows)
        yield from ask(store)
    finally:
        store.close()
    yield from ask_admin(url, folder)


# -- fill ---------------------------------------------------------------------------------------------


def fill(store: SqlStore, rows: int) -> None:
    rng = random.Random(1)
    holders = [Filler(store, shard) for shard in range(store.shards)]
    with progress("fill", rows + rows // 2) as bar:
        for number, start in enumerate(range(0, rows // 2, GROUP)):
            _settle(holders[number % len(holders)], start, min(GROUP, rows // 2 - start), rows // 2, rng)
            bar(0, done=start)
        for number, start in enumerate(range(0, rows, GROUP)):
            _wait(holders[number % len(holders)], min(GROUP, rows - start), rng, rare=number < RARE_ROWS)
            bar(0, done=rows // 2 + start)
    for holder in holders:
        _retire(holder, rows // 200 // len(holders))
        store.renew(holder.shard, holder.epoch, NOW, LEASE_MS, {})


def _kind(rng: random.Random) -> dict[str, Any]:
    number = rng.randrange(150)
    return {"task": FREQUENT if number >= 100 else f"bench.task_{number}", "queue": f"queue_{number % 20}"}


def _wait(holder: Filler, count: int, rng: random.Random, rare: bool) -> None:
    new = [holder.row(NOW + rng.randrange(DAYS * 24 * HOUR_MS), **_kind(rng)) for _ in range(count)]
    if rare:
        new[0] = holder.row(new[0].due_ms, task=RARE, queue="queue_7")
    holder.accept(new)


def _settle(holder: Filler, start: int, count: int, of: int, rng: random.Random) -> None:
    """Dispatch rows of the last seven days, in order and a little late, in settlements of some rows each."""
    step_ms = 7 * 24 * HOUR_MS // of + 1
    new = [holder.row(NOW - (of - start - n) * step_ms, **_kind(rng)) for n in range(count)]
    if start == 0:
        new[0] = holder.row(new[0].due_ms, task=RARE, queue="queue_7")
    holder.accept(new)
    last = (new[min(at + SETTLED_AT_ONCE, count) - 1] for at in range(0, count, SETTLED_AT_ONCE))
    holder.settle(*(Position(row.due_ms, row.seq) for row in last), late_ms=20)


def _retire(holder: Filler, count: int) -> None:
    new = [holder.row(NOW - n * 1_000, task=f"bench.task_{n % 100}", queue="queue_1") for n in range(count)]
    holder.accept(new)
    holder.retire(new, "rejected", NOW)


# -- ask ----------------------------------------------------------------------------------------------


def _nth(turn: Callable[[Position], Page[Any]], start: Position, pages: int) -> Position:
    """Return the position at which the page after so many pages begins."""
    for _ in range(pages):
        start = turn(start).next or start
    return start


def questions(store: SqlStore) -> dict[str, Question]:
    everything, frequent, rare = Criteria(), Criteria(task=FREQUENT), Criteria(task=RARE)
    both = Criteria(task="bench.task_5", queue="queue_5")
    far = _nth(lambda after: store.browse.pending(everything, after), ORIGIN, 100)
    deep = _nth(lambda before: store.browse.dispatched(everything, before), END, 100)
    some = store.browse.pending(everything, far, 1).items[0]
    day = Criteria(from_ms=NOW + 20 * 24 * HOUR_MS, to_ms=NOW + 21 * 24 * HOUR_MS)
    return {
        "pending, first page": lambda s: s.browse.pending(everything),
        "pending, page 101": lambda s: s.browse.pending(everything, far),
        "pending, a day": lambda s: s.browse.pending(day),
        "pending, frequent task": lambda s: s.browse.pending(frequent),
        "pending, rare task": lambda s: s.browse.pending(rare),
        "pending, task and queue": lambda s: s.browse.pending(both),
        "pending, unknown task": lambda s: s.browse.pending(Criteria(task="nobody")),
        "history, first page": lambda s: s.browse.dispatched(everything),
        "history, page 101": lambda s: s.browse.dispatched(everything, deep),
        "history, frequent task": lambda s: s.browse.dispatched(frequent),
        "history, rare task": lambda s: s.browse.dispatched(rare),
        "rejected": lambda s: s.browse.outcomes(["rejected"], everything),
        "rejected, one task": lambda s: s.browse.outcomes(["rejected"], both),
        "rejected, unknown task": lambda s: s.browse.outcomes(["rejected"], rare),
        "settlements": lambda s: s.browse.batches(everything),
        "a task by its id": lambda s: s.browse.find(some.task_id),
        "names for the filters": lambda s: s.browse.names(),
        "due by hour": lambda s: s.browse.due_by_name(everything),
        "status": lambda s: read_overview(s, NOW),
    }


def ask(store: SqlStore) -> Iterator[Figure]:
    for name, question in questions(store).items():
        yield _figure(name, lambda question=question: question(store))  # type: ignore[misc]


def _figure(name: str, question: Callable[[], object]) -> Figure:
    took_ms = []
    for _ in range(TIMES):
        began = time.perf_counter()
        question()
        took_ms.append((time.perf_counter() - began) * 1_000)
    return Figure("reading", name, min(took_ms), "ms", target=TARGET_MS, less_is_better=True)


# -- the admin ----------------------------------------------------------------------------------------

PAGES = {
    "admin: wheel": "wheel/",
    "admin: wheel, live part": "wheel/live/",
    "admin: pending": "pending/",
    "admin: pending, frequent task": f"pending/?task={FREQUENT}",
    "admin: pending, rare task": f"pending/?task={RARE}",
    "admin: history": "history/",
    "admin: rejected": "rejected/",
    "admin: batches": "batch/",
    "admin: shards": "shard/",
}


def admin_client(url: str, folder: Path) -> Any:
    """Return a client of the admin over a store; the site's own database is a small file."""
    os.environ |= {"DJANGO_SETTINGS_MODULE": "tests.kit.site.settings", "SITE_FOLDER": str(folder), "SITE_STORE": url}
    import django

    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    call_command("migrate", verbosity=0)
    client = Client()
    client.force_login(User.objects.create_superuser("reader"))
    return client


def ask_admin(url: str, folder: Path) -> Iterator[Figure]:
    """Yield the times of the admin's pages by Django's test client."""
    client = admin_client(url, folder)

    def get(address: str) -> None:
        answer = client.get(f"/admin/django_wheel/{address}")
        assert answer.status_code == 200, answer.content

    for name, address in PAGES.items():
        yield _figure(name, lambda address=address: get(address))  # type: ignore[misc]
