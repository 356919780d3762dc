"""The pictures of README and docs: ``make screenshots`` takes them anew, from the filled store of a shop.

A snapshot of the holder is written every half second, as a scheduler does, while Chromium takes PICTURES. The random
numbers are the same in each run, and the times relative to the present: pictures of two runs differ in these times.
"""

import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from PIL import Image
from playwright.sync_api import sync_playwright

from celery_wheel.engine.stats import SPAN_MS, Recent
from celery_wheel.recurring.definition import to_text
from celery_wheel.store import open_store
from celery_wheel.store.audit_model import AuditEntry
from celery_wheel.store.model import DAY_MS, HOUR_MS, ORIGIN, Gate, LaneState, Outcome, Position, StoredMessage
from celery_wheel.store.schedule_model import Skip
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.timing import TimingWheel
from tests.kit.holder import Holder, hour_of, place
from tests.kit.processes import ROOT
from tests.kit.schedules import create, occurrence
from tests.kit.site.running import RunningSite, manage, migrated

ADMIN = "/admin/django_wheel"
WIDTH, HEIGHT = 1_280, 900
PERSON, PASSWORD = "ann", "of pictures"
TASKS = ("shop.send_invoice", "shop.remind_customer", "billing.charge", "search.reindex", "mail.digest")
QUEUES = ("mail", "billing", "slow")
MINUTE_MS = 60_000
SCHEDULE = "nightly-report/America"
#: Instants of that schedule, by their number, that had no run, and why.
SKIPPED = {20: "overlapped", 28: "paused", 29: "paused", 35: "missed", 42: "overlapped"}
#: Pages of which the picture has the beginning only.
LONG_PAGES = ("history-page", "schedule-page")


def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("Chromium is not installed; on Debian: apt-get install chromium")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = f"sqlite:///{folder}/wheel.sqlite3"
        site = RunningSite(folder, "", "memory://", SITE_STORE=url)
        migrated(folder, "", SITE_STORE=url)
        person = f"{PERSON!r}, password={PASSWORD!r}"
        user = f"from django.contrib.auth.models import User; User.objects.create_superuser({person})"
        manage(folder, "", "shell", "-c", user, SITE_STORE=url).check_returncode()
        with closing(open_store(url)) as store:
            shop = Shop(store)
            pictures = shop.fill()
            site.web()
            try:
                with shop.alive():
                    take(chromium, site.url, pictures)
            finally:
                site.close()


class Shop:
    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._holder = Holder(store, name="shop-1/4711/a")
        self._rng = random.Random(4)
        self._now_ms = now_ms()
        self._dues: list[int] = []

    def fill(self) -> dict[str, str]:
        self._history(100, after=self._schedule())
        self._pending()
        moved = self._moved()
        self._requests()
        return {
            "wheel-page": f"{ADMIN}/wheel/",
            "task-page": f"{ADMIN}/pending/{moved.id}/",
            "history-page": f"{ADMIN}/history/",
            "schedule-page": f"{ADMIN}/schedule/one/?name={SCHEDULE}",
        }

    def _row(self, due_ms: int, accepted_ms: int, **parts: Any) -> StoredMessage:
        names = {"task": self._rng.choice(TASKS), "queue": self._rng.choice(QUEUES), "created_ms": accepted_ms - 120}
        body = json.dumps([[self._rng.randrange(9_999), "hello"], {"customer": 17}, {"callbacks": None}]).encode()
        return replace(self._holder.row(due_ms, **{**names, "body": body, **parts}), accepted_ms=accepted_ms)

    def _accept(self, rows: list[StoredMessage]) -> None:
        self._holder.apply(rows=rows, tally=Counter(map(hour_of, rows)))

    def _schedule(self) -> Position:
        """Make a schedule with two months of runs; returns the position of the last."""
        zone, holder, before = ZoneInfo("America/New_York"), self._holder, ORIGIN
        nights = datetime.now(zone).replace(hour=1, minute=30, second=0, microsecond=0)
        dues = [int((nights + timedelta(days=n)).timestamp() * 1_000) for n in range(-55, 2)]
        dues = [*(due_ms for due_ms in dues if due_ms < self._now_ms - 5 * HOUR_MS), dues[-1]]
        spec = {"kind": "crontab", "minute": "30", "hour": "1"}
        recurrence = {"kind": "recurrence", "spec": spec, "zone": zone.key}
        text = to_text({"recurrence": recurrence, "task": "shop.report", "overlap": "skip", "max_runtime_ms": HOUR_MS})
        parts = {"definition": text, "made": len(dues) - len(SKIPPED), "last_ms": dues[-2]}
        (schedule,) = create(holder, SCHEDULE, next_ms=dues[-1], **parts)
        skips = [Skip(schedule.id, dues[n], dues[n], 1, reason, dues[n]) for n, reason in SKIPPED.items()]
        made = [occurrence(holder, schedule, due_ms) for n, due_ms in enumerate(dues) if n not in SKIPPED]
        holder.apply(rows=[row for row, _ in made], runs=[run for _, run in made], skips=skips)
        for number, (row, _) in enumerate(made[:-1]):
            if number % 22 == 13:
                holder.apply(moves=[holder.stop(row)], outcomes=[holder.outcome(row.id, "rejected", row.due_ms)])
                continue
            late_ms = self._rng.randrange(35_000, 110_000) if number % 9 == 7 else self._rng.randrange(5, 300)
            holder.settle(before, place(row), at_ms=row.due_ms + late_ms)
            before = place(row)
        return before

    def _history(self, count: int, after: Position) -> None:
        dues = sorted(self._now_ms - self._rng.randrange(4 * HOUR_MS) for _ in range(count))
        rows = [self._row(due_ms, due_ms - 2 * HOUR_MS) for due_ms in dues]
        self._accept(rows)
        before = after
        for number, row in enumerate(rows):
            late_ms = 42_000 if number == count // 2 else self._rng.randrange(8, 300)
            self._holder.settle(before, place(row), at_ms=row.due_ms + late_ms)
            before = place(row)
        self._holder.apply(tally={key: -pending for key, pending in Counter(map(hour_of, rows)).items()})

    def _pending(self) -> None:
        now, rng = self._now_ms, self._rng
        dues = [now + MINUTE_MS // 2 + rng.randrange(2 * MINUTE_MS) for _ in range(240)]
        dues += [now + MINUTE_MS + rng.randrange(HOUR_MS) for _ in range(1_800)]
        dues += [now + MINUTE_MS + int(rng.expovariate(1 / (8 * HOUR_MS))) for _ in range(3_000)]
        dues += [now + MINUTE_MS + rng.randrange(365 * DAY_MS) for _ in range(4_000)]
        dues += [(now // HOUR_MS + 9) * HOUR_MS] * 2_500
        self._dues = dues
        self._accept([self._row(due_ms, now - HOUR_MS) for due_ms in dues])

    def _moved(self) -> StoredMessage:
        now = self._now_ms
        row = self._row(now + HOUR_MS, now - 5 * HOUR_MS, task=TASKS[0], queue="mail")
        self._accept([row])
        due_ms, at_ms = now + 2 * HOUR_MS, now - 23 * MINUTE_MS
        moved = Outcome(self._holder.seq(), row.id, "moved", "the customer asked for a later call", "ann", at_ms)
        self._holder.apply(moves=[replace(self._holder.move(row, due_ms), eta_ms=due_ms)], outcomes=[moved])
        return row

    def _requests(self) -> None:
        now = self._now_ms
        asked = {"pause": "queue mail", "cancel": "a task", "schedule_trigger": "nightly-report", "requeue": "a task"}
        about = {"origin": "admin", "reason": "", "details": "{}", "bulk": None}
        audits = [
            AuditEntry(
                f"0190{n:04}-0000-7000-8000-000000000000",
                now - (n + 1) * 4 * MINUTE_MS,
                actor="ann",
                action=action,
                results=json.dumps({name: "done"}),
                **about,
            )
            for n, (action, name) in enumerate(asked.items())
        ]
        gate = Gate("queue", "mail", "paused", 0, "the provider limits us until Monday", "ann", now - 4 * MINUTE_MS)
        offset = Position(now - 4 * MINUTE_MS, 0)
        self._holder.apply(audits=audits, gates=[gate], lanes=[LaneState(1, offset, offset, "mail", scope="queue")])
        self._accept([self._row(now - n * 6_000, now - HOUR_MS, lane=1, queue="mail") for n in range(1, 38)])
        refused = self._row(now + HOUR_MS, now - HOUR_MS)
        self._accept([refused])
        rejected = self._holder.outcome(refused.id, "rejected", now - 2 * HOUR_MS)
        self._holder.apply(moves=[self._holder.stop(refused)], outcomes=[rejected], tally={hour_of(refused): -1})

    @contextmanager
    def alive(self) -> Iterator[None]:
        recent, accepted, dispatched = Recent(), 0, 0
        for n in range(31):
            accepted, dispatched = accepted + self._rng.randrange(150, 900), dispatched + self._rng.randrange(200, 700)
            late = {"p50_ms": self._rng.randrange(2, 30), "p99_ms": self._rng.randrange(40, 700)}
            spans = recent.add(self._now_ms - (30 - n) * SPAN_MS, accepted, dispatched, late)
        figures = {
            **{"accepted": accepted, "dispatched": dispatched, "rejected": 3, "broker_errors": 1, "recent": spans},
            **{"late": {"count": 200, "p50_ms": 5, "p99_ms": 90, "max_ms": 410}, "began_ms": self._now_ms - DAY_MS},
        }
        over = threading.Event()

        def write() -> None:
            while not over.wait(0.5):
                at_ms = now_ms()
                self._store.renew(0, self._holder.epoch, at_ms, 3_000, {**figures, **self._wheel(at_ms)})
                self._store.register_scheduler("shop-2/815/b", at_ms, 1)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _wheel(self, at_ms: int) -> dict[str, Any]:
        wheel, horizon_ms = TimingWheel(1, 512, at_ms), at_ms + 6 * HOUR_MS
        for number, due_ms in enumerate(self._dues):
            if at_ms < due_ms < horizon_ms:
                wheel.schedule(number, due_ms)
        levels = [
            {
                **{"level": level.number, "tick_ms": level.tick_ms, "interval_ms": level.interval_ms},
                **{"current_time_ms": level.current_time_ms, "pending": level.pending},
                "buckets": [
                    {"index": one.index, "expiration_ms": one.expiration_ms, "pending": one.pending}
                    for one in level.buckets
                ],
            }
            for level in wheel.levels()
        ]
        lane = {"lane": 0, "offset": [at_ms, 0], "watermark": [at_ms, 0], "horizon": [horizon_ms, 0], "ready": 0}
        clock = {"at_ms": at_ms, "clock_disputed_ms": 0, "clock_skew_ms": 0, "next_due_ms": min(self._dues)}
        return {"window_count": len(wheel), "window_bytes": 1, "lanes": [lane], "levels": levels, **clock}


def take(chromium: str, url: str, pictures: dict[str, str]) -> None:
    with sync_playwright() as playwright:
        # As root Chromium has no sandbox; it opens only our own pages.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(base_url=url, viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto("/admin/")
        page.fill("input[name=username]", PERSON)
        page.fill("input[name=password]", PASSWORD)
        page.locator("[type=submit]").first.click()
        for name, path in pictures.items():
            page.goto(path)
            page.wait_for_timeout(3_000)  # the wheel's page has its seconds with its third poll
            shot = Image.open(BytesIO(page.screenshot(full_page=name not in LONG_PAGES))).convert("RGB")
            target = (ROOT / "docs" / "images") / f"{name}.png"
            shot.quantize(256, dither=Image.Dither.NONE).save(target, optimize=True)
            print(f"{target.relative_to(ROOT)}: {target.stat().st_size:,} bytes")
        browser.close()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    main()
