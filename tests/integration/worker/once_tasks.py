"""A task with ``once`` for a worker's ``imports``; where the file ``kill`` is, the worker dies right after a commit."""

import os
import signal
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from celery_wheel import once, once_table
from tests.kit.project import app

META = sa.MetaData()
once_table(META)
PAID = sa.Table("paid", META, sa.Column("what", sa.Text), sa.Column("worker", sa.Integer))

engine = sa.create_engine(os.environ["ONCE_DATABASE"])
KILL = Path(os.environ["ONCE_FOLDER"]) / "kill"


@app.task(name="pay", shared=False, acks_late=True, reject_on_worker_lost=True)
@once(engine)
def pay(what: str, *, connection: sa.Connection) -> int:
    connection.execute(PAID.insert().values(what=what, worker=os.getpid()))
    return os.getpid()


@sa.event.listens_for(engine, "checkin")
def on_checkin(connection: Any, _record: Any) -> None:
    """Die after the task's commit and before Celery knows of it."""
    if KILL.exists() and connection.execute("SELECT count(*) FROM paid").fetchone()[0]:
        KILL.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
