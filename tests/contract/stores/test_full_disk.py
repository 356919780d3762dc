"""A PostgreSQL with a full disk: nothing is accepted, nothing is lost, and accepting continues with free space."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_wheel.errors import StoreError
from celery_wheel.store import open_store
from tests.kit.holder import LEASE, NOW, Holder
from tests.kit.servers.postgres import PostgresServer

ROWS = 1_000


def mount(*arguments: str) -> bool:
    return subprocess.run(["/bin/mount", *arguments], capture_output=True).returncode == 0


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """24 MB to which the server's user may write; the folders of pytest are closed to it."""
    place = Path(tempfile.mkdtemp(prefix="wheel-disk-"))
    if os.geteuid() != 0 or not mount("-t", "tmpfs", "-o", "size=24m,mode=711", "tmpfs", str(place)):
        place.rmdir()
        pytest.skip("only root may mount a small disk, and not in every container")
    try:
        place.chmod(0o711)
        folder = place / "tables"
        folder.mkdir()
        os.chown(folder, pwd.getpwnam("postgres").pw_uid, -1)
        yield folder
    finally:
        subprocess.run(["/bin/umount", "--lazy", str(place)], check=True)
        place.rmdir()


def accept_until_full(holder: Holder, body: bytes) -> tuple[int, str]:
    """Return how many messages were accepted before the error, and the error."""
    for accepted in range(0, 100 * ROWS, ROWS):
        try:
            holder.accept(*[NOW] * ROWS, body=body)
        except StoreError as error:
            return accepted, str(error)
    raise AssertionError("the disk did not become full")


def test_a_full_disk_loses_nothing(small_disk: Path) -> None:
    with PostgresServer() as server:
        server.sql(f"CREATE TABLESPACE small LOCATION '{small_disk}'", "CREATE DATABASE crammed TABLESPACE small")
        store = open_store(server.url("crammed"))
        holder = Holder(store)
        body = os.urandom(1_000)
        accepted, said = accept_until_full(holder, body)
        assert re.search("has no room on its disk .*; nothing was written", said)
        assert len(holder.slice()) == accepted > 0
        store.renew(0, holder.epoch, NOW, LEASE, {})
        assert mount("-o", "remount,size=64m", str(small_disk.parent))
        holder.acquire()
        holder.accept(*[NOW] * ROWS, body=body)
        assert len(holder.slice()) == accepted + ROWS
        store.close()
