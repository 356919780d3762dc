"""The store: can it be read, is it what the settings mean, what is left in it, is there room, is history archived."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from celery_wheel.doctor.finding import Finding, error, ok, warning
from celery_wheel.doctor.site import Site
from celery_wheel.present import duration, seen, utc
from celery_wheel.store.model import OPEN, SCHEMA_VERSION
from celery_wheel.store.place import place_of
from celery_wheel.store.ports import FullStore
from celery_wheel.store.ports.maintenance import ARCHIVE

#: Bytes that are free on the disk. A full one stops what comes in; what is in stays.
LOW, NEARLY_FULL = 2**30, 100 * 2**20
#: Hardly any load takes longer than this.
LEFT_OPEN_MS = 86_400_000


def check(site: Site) -> Iterator[Finding]:
    store = site.store
    if store is None:
        yield error("store", site.store_trouble, "Beat and this host need the same store: see wheel_store.")
        return
    yield ok("store", f"{store.name} answers; its tables have version {SCHEMA_VERSION}, as they should")
    if store.shards != site.conf.shards:
        yield error(
            "shards",
            f"the store has {store.shards} shards, and wheel_shards is {site.conf.shards}: producers send to queues "
            "that no scheduler reads, or schedulers refuse to start",
            f"Set wheel_shards = {store.shards} everywhere, or: celery -A <project> wheel reshard {site.conf.shards}",
        )
    yield from _left_open(site, store)
    if place_of(site.conf.store).url.drivername.startswith("sqlite"):
        yield _room(store)
    if site.conf.history_archive:
        yield _archived(site, store)


def _left_open(site: Site, store: FullStore) -> Iterator[Finding]:
    for one in store.loads.unfinished():
        age_ms = site.now_ms() - one.begun_ms
        if one.state == OPEN and age_ms > LEFT_OPEN_MS:
            yield warning(
                "load",
                f"the bulk load {seen(one.name)} was begun {duration(age_ms)} ago and is open: nothing of it leaves",
                "Run the same job again to go on with it, or: "
                f"celery -A <project> wheel loads --abort {shlex.quote(seen(one.name))}",
            )


def _room(store: FullStore) -> Finding:
    path = Path(store.name)
    free = shutil.disk_usage(path.parent).free
    text = f"{free / 2**30:,.1f} GiB are free on the disk of {path}, which has {path.stat().st_size / 2**20:,.1f} MiB"
    if free >= LOW:
        return ok("disk", text)
    remedy = "Make room, or lower wheel_history_max_bytes; on a full disk nothing is accepted, and nothing is lost."
    return (error if free < NEARLY_FULL else warning)("disk", text, remedy)


def _archived(site: Site, store: FullStore) -> Finding:
    """With wheel_history_archive history waits, however old, where nobody archives it."""
    oldest = min(store.maintenance.unarchived(), key=lambda one: one.at_ms, default=None)
    now_ms, kept_ms = site.now_ms(), site.conf.history_retention_ms
    if oldest is None or now_ms - oldest.at_ms <= kept_ms:
        return ok("archive", f"all history of more than {duration(kept_ms)} ago is archived")
    return warning(
        "archive",
        f"history of shard {oldest.shard} since {utc(oldest.at_ms)}, {duration(now_ms - oldest.at_ms)} ago, waits for "
        f"the archive and cannot be forgotten, though it is kept for {duration(kept_ms)} only: the store grows",
        f"Let the archive be written more often than that; {ARCHIVE}; or set wheel_history_archive = False.",
    )
