"""``celery wheel doctor`` reads what the server of a store promises, what holds back its vacuum, and its archive."""

import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from celery import Celery

from celery_wheel.operations.doctor import Finding, Grade, Installation, store
from celery_wheel.scheduler.service import _warn_of_server
from celery_wheel.store import open_store
from celery_wheel.store.model import ORIGIN
from tests.kit.holder import NOW, Holder, place
from tests.kit.patience import wait_until
from tests.kit.processes import Process
from tests.kit.servers.postgres import PostgresServer, _user, postgres_binaries

ABOUT = ("fsync", "full_page_writes", "synchronous_commit", "durability", "replication", "vacuum")


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return _with_tables(postgres.new_database())


@pytest.fixture(scope="module")
def safe() -> Iterator[PostgresServer]:
    with PostgresServer(fsync="on", full_page_writes="on") as found:
        _with_tables(found.url())
        yield found


def _with_tables(url: str) -> str:
    open_store(url).close()
    return url


def looked_at(url: str, *about: str, **settings: object) -> list[Finding]:
    app = Celery("doctor", set_as_current=False, broker="memory://")
    app.conf.update(wheel_store=url, **settings)
    with Installation(app) as site:
        return [one for one in store.check(site) if one.about in (about or ABOUT)]


def test_files_that_every_user_may_open_have_a_sentence(tmp_path: Path) -> None:
    url = _with_tables(f"sqlite:///{tmp_path}/wheel.sqlite3")
    [fine] = looked_at(url, "modes")
    assert fine.grade is Grade.OK
    (tmp_path / "wheel.sqlite3").chmod(0o664)
    (tmp_path / "wheel.sqlite3.copy").touch(0o644)
    [found] = looked_at(url, "modes")
    assert found.grade is Grade.WARNING
    assert "wheel.sqlite3 (0664), " in found.text
    assert found.remedy.startswith(f"Run: chmod 600 {tmp_path}/wheel.sqlite3 ")
    assert found.remedy.endswith(f" {tmp_path}/wheel.sqlite3.copy")


MOUNTS = """/dev/vda / ext4 rw 0 0
filer:/export /mnt/shared nfs4 rw,vers=4.2 0 0
/dev/vdb /mnt/shared/local\\040disk xfs rw 0 0
//nas/wheel /srv/nas cifs rw 0 0
host /srv/host 9p rw 0 0
bucket /srv/bucket fuse.s3fs rw 0 0
/dev/sdc1 /srv/windows fuseblk rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "kind", "grade"),
    [
        ("/var/lib", "ext4", Grade.OK),
        ("/mnt/shared/wheel", "nfs4", Grade.WARNING),
        ("/mnt/shared/local disk", "xfs", Grade.OK),
        ("/srv/nas", "cifs", Grade.WARNING),
        ("/srv/host", "9p", Grade.WARNING),
        ("/srv/bucket", "fuse.s3fs", Grade.WARNING),
        ("/srv/windows", "fuseblk", Grade.OK),
    ],
)
def test_a_file_on_a_network_file_system_has_a_sentence(folder: str, kind: str, grade: Grade) -> None:
    found = store.file_system(f"{folder}/wheel.sqlite3", MOUNTS)
    assert (found.grade, f"is on {kind}" in found.text) == (grade, True)


def test_where_the_system_does_not_name_its_mounts_nothing_is_said(tmp_path: Path) -> None:
    assert store.file_system(f"{tmp_path}/wheel.sqlite3", "").grade is Grade.OK
    [found] = looked_at(_with_tables(f"sqlite:///{tmp_path}/wheel.sqlite3"), "file system")
    assert found.grade is Grade.OK


def test_each_setting_by_which_commits_are_lost_has_a_sentence(postgres: PostgresServer, url: str) -> None:
    database = url.rpartition("/")[2]
    postgres.sql(f"ALTER DATABASE {database} SET synchronous_commit = off")
    fsync, pages, commits = looked_at(url, *ABOUT[:4])
    assert (fsync.about, fsync.grade) == ("fsync", Grade.WARNING)
    assert "loss of power may destroy the whole database" in fsync.text
    assert (pages.about, pages.grade) == ("full_page_writes", Grade.WARNING)
    assert "stays torn" in pages.text
    assert (commits.about, commits.grade) == ("synchronous_commit", Grade.NOTE)
    assert "the wheel's own durable commits wait for the disk nevertheless" in commits.text


def test_a_server_that_keeps_its_commits_is_fine(safe: PostgresServer) -> None:
    found = looked_at(safe.url(), "durability", "replication")
    assert [one.grade for one in found] == [Grade.OK, Grade.OK]
    assert "waits for the server's disk" in found[0].text
    assert found[1].text.startswith("none: ")


def test_settings_that_lose_commits_are_told(url: str, safe: PostgresServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for one in (url, safe.url()):
            with closing(open_store(one)) as opened:
                _warn_of_server(opened)
    found = [(record.levelname, getattr(record, "setting", None)) for record in caplog.records]
    assert found == [("WARNING", "fsync"), ("WARNING", "full_page_writes")]


def test_the_kind_of_replication_is_named(safe: PostgresServer) -> None:
    """A receiver of the log counts as a standby; no commit waits for it until it is named."""
    binaries = postgres_binaries()
    assert binaries is not None
    with tempfile.TemporaryDirectory(prefix="wheel-postgres-") as folder:
        user = _user()
        if user:
            os.chown(folder, user["user"], user["group"])
        command = [binaries / "pg_receivewal", "-D", folder, "-d", f"{safe.url()}?application_name=second", "--no-loop"]
        with Process([*map(str, command), "--synchronous"], safe.folder / "receiver.log", folder=Path(folder), **user):
            streams = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
            wait_until(lambda: safe.sql(streams) == [(1,)], "the receiver has all of the log")
            [receiver] = looked_at(safe.url(), "replication")
            assert receiver.grade == Grade.NOTE
            assert "a promotion may lose the last commits, which the wheel has acknowledged" in receiver.text
            safe.sql("ALTER SYSTEM SET synchronous_standby_names = 'second'", "SELECT pg_reload_conf()")
            try:
                names = "SHOW synchronous_standby_names"
                wait_until(lambda: safe.sql(names) == [("second",)], "the server waits for it")
                [receiver] = looked_at(safe.url(), "replication")
                assert receiver.grade == Grade.OK
                assert receiver.text.startswith("synchronous: a commit waits for second,")
            finally:
                safe.sql("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
                wait_until(lambda: safe.sql(names) == [("",)], "the server waits no more")


def test_the_oldest_transaction_that_keeps_replaced_rows_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = open_store(url, lease_ms=60_000)  # a session that a busy machine stops is ended after half of it
    with closing(patient) as opened, psycopg.connect(f"{url}?application_name=report") as session:
        [none] = looked_at(url, "vacuum")
        assert none.grade == Grade.OK
        session.execute("SELECT 1")
        [none] = looked_at(url, "vacuum")
        assert "no open transaction keeps replaced rows" in none.text, "a transaction without a snapshot keeps none"
        session.execute("CREATE TABLE other ()")
        Holder(opened).accept(NOW)
        [young] = looked_at(url, "vacuum")
        assert young.grade == Grade.OK
        monkeypatch.setattr(store, "OLD_MS", 0)
        [old] = looked_at(url, "vacuum")
        assert old.grade == Grade.WARNING
        pid = session.info.backend_pid
        assert f"(process {pid} of the user wheel, report, idle in transaction)" in old.text
        assert f"SELECT pg_terminate_backend({pid})" in old.remedy


def test_a_user_who_may_not_see_the_transactions_of_others_is_told_so(postgres: PostgresServer, url: str) -> None:
    database = url.rpartition("/")[2]
    grant = "GRANT SELECT ON ALL TABLES IN SCHEMA public TO limited"
    postgres.sql("CREATE ROLE limited LOGIN", grant, database=database)
    try:
        with psycopg.connect(url) as session:
            session.execute("CREATE TABLE other ()")
            *_, note = looked_at(url.replace("wheel@", "limited@"), "vacuum")
            assert note.grade == Grade.NOTE
            assert "GRANT pg_read_all_stats" in note.remedy
            postgres.sql("GRANT pg_read_all_stats TO limited")
            [seen] = looked_at(url.replace("wheel@", "limited@"), "vacuum")
            assert "of the user wheel" in seen.text
            session.rollback()
    finally:
        postgres.sql("DROP OWNED BY limited", database=database)
        postgres.sql("DROP ROLE limited")


def test_a_file_has_no_server(tmp_path: Path) -> None:
    assert looked_at(_with_tables(f"sqlite:///{tmp_path}/wheel.sqlite3")) == []


def test_the_command_for_history_that_waits_too_long_for_its_archive_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/wheel.sqlite3"
    now_ms, hour_ms = int(time.time() * 1_000), 3_600_000

    def finding() -> Finding:
        [found] = looked_at(url, "archive", wheel_history_retention=3_600, wheel_history_archive=True)
        return found

    with closing(open_store(url)) as opened:
        holder = Holder(opened)
        old, young = holder.accept(now_ms - 30 * hour_ms, now_ms)
        holder.settle(ORIGIN, place(old), at_ms=now_ms - 30 * hour_ms)
        archived = holder.highest_seq
        holder.settle(place(old), place(young), at_ms=now_ms - hour_ms // 2)
        assert looked_at(url, "archive", wheel_history_retention=3_600) == []
        found = finding()
        assert found.grade == Grade.WARNING
        assert "1 d 6 h ago, waits for the archive" in found.text, found.text
        assert "run: celery-wheel-pipeline archive --store" in found.remedy
        opened.maintenance.note_archived({0: archived})
        assert (finding().grade, finding().text) == (Grade.OK, "all history of more than 1 h ago is archived")


def test_keys_that_the_store_needs_are_compared_with_the_settings(tmp_path: Path) -> None:
    old, new = "the old secret of 32 characters.", "the new secret of 32 characters."
    url = f"sqlite:///{tmp_path}/wheel.sqlite3"
    assert looked_at(_with_tables(url), "keys") == []
    with closing(open_store(url, keys=[old])) as opened:
        Holder(opened).accept(NOW)
    [without] = looked_at(url, "keys")
    assert (without.grade, without.remedy) == (Grade.ERROR, "Add its secret, behind the first one.")
    assert looked_at(url, "keys", wheel_encryption_keys=[new])[0].grade is Grade.ERROR
    [fine] = looked_at(url, "keys", wheel_encryption_keys=[old])
    assert fine.grade is Grade.OK
    [waits] = looked_at(url, "keys", wheel_encryption_keys=[new, old])
    assert waits.grade is Grade.NOTE
    assert waits.text.startswith("some messages of the store still have ")
    with closing(open_store(url, keys=[new, old])) as opened:
        opened.repacking.kept_s = 0
        holder = Holder(opened)
        while opened.repack(0, holder.epoch) is not None:
            pass
        opened.repack(0, holder.epoch)
    same, spare = looked_at(url, "keys", wheel_encryption_keys=[new, old])
    assert (same.grade, spare.grade) == (Grade.OK, Grade.NOTE)
    assert spare.text.startswith("the store no longer needs the key ")
