"""``once`` in real workers: one that is killed between the commit and the acknowledgement, and two with two copies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from celery_wheel import once_table
from tests.kit.patience import wait_until
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.rabbit import RabbitServer
from tests.kit.stack import Stack

META = sa.MetaData()
once_table(META)
PAID = sa.Table("paid", META, sa.Column("what", sa.Text), sa.Column("worker", sa.Integer))
TASKS = ("tests.integration.worker.once_tasks",)


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(
    request: pytest.FixtureRequest, tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[sa.Engine]:
    url = f"sqlite:///{tmp_path}/shop.sqlite3"
    if request.param == "postgresql":
        url = postgres.new_database().replace("postgresql://", "postgresql+psycopg://")
    monkeypatch.setenv("ONCE_DATABASE", url)
    monkeypatch.setenv("ONCE_FOLDER", str(tmp_path))
    made = sa.create_engine(url)
    META.create_all(made)
    yield made
    made.dispose()


@pytest.fixture
def stack(tmp_path: Path, rabbit_server: RabbitServer, engine: sa.Engine) -> Iterator[Stack]:
    server: Any = rabbit_server.fresh()
    with Stack(tmp_path, server, beat_schedule={}, imports=TASKS) as made:
        yield made


def paid(engine: sa.Engine) -> list[tuple[str, int]]:
    with engine.begin() as connection:
        return [tuple(row) for row in connection.execute(sa.select(PAID))]


def test_a_worker_that_is_killed_after_the_commit_has_its_task_ended_by_another(
    stack: Stack, engine: sa.Engine, tmp_path: Path
) -> None:
    (tmp_path / "kill").touch()
    first = stack.worker()
    stack.app.send_task("pay", ("a",), task_id="1", link=stack.app.signature("note"))
    first.end()
    assert [what for what, _ in paid(engine)] == ["a"]
    second = stack.worker()
    [(_, worker)] = paid(engine)
    stack.wait_for(worker)  # the link runs, with the result of the first worker
    second.wait_for("was done by another copy; its result is returned")
    assert [what for what, _ in paid(engine)] == ["a"]


@pytest.mark.slow
def test_two_workers_with_two_copies_commit_one(stack: Stack, engine: sa.Engine) -> None:
    for number in range(50):
        for _ in range(2):
            stack.app.send_task("pay", (f"{number}",), task_id=f"{number}")
    workers = [stack.worker("-P", "solo", "-n", name) for name in ("one", "two")]
    wait_until(lambda: sum(one.said().count("succeeded in") for one in workers) == 100, "each copy succeeds")
    assert sorted(int(what) for what, _ in paid(engine)) == list(range(50))
