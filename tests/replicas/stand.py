"""Two schedulers under load whose store or broker has replicas, and the account of each task at the end.

::

    client ──► broker ──► schedulers a and b ──► broker ──► Notes: what arrives
    (ledger)                  │
                            store

    gone    sent, and at the end neither in the store nor in the wheel queue: the store lost its acceptance
    said    how many messages the schedulers said that the store lost
    lost    sent, and it never arrived
"""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psycopg
import sqlalchemy
from sqlalchemy import select

from celery_wheel.errors import StoreError
from celery_wheel.store import open_store
from celery_wheel.store.sql import schema
from celery_wheel.store.sql.store import SqlStore
from tests.faults.judge import Verdict, judge
from tests.kit.patience import patience, wait_until
from tests.kit.project import read_lines
from tests.kit.stack import Stack
from tests.network.stack import Notes

SCHEDULERS = ("a", "b")
SHARDS = 2

SAID = re.compile(r"shard \d+: the store was rolled back: (\d+) messages")


@dataclass
class Account:
    """The end of a scenario; ``broken`` has what the scenario does not allow."""

    scenario: str
    verdict: Verdict
    gone: int = 0
    said: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    broken: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        counts = "".join(f", {name} {count}" for name, count in self.counts.items())
        return (
            f"{self.scenario}: {self.verdict}, {self.gone} gone from the store, {self.said} by its schedulers' own "
            f"count{counts}; broken: {self.broken or 'none'}"
        )


class FollowedNotes(Notes):
    """Notes of a broker whose address may change: ``find`` returns the one of now."""

    def __init__(self, find: Callable[[], str], stop: threading.Event) -> None:
        self.find = find
        super().__init__("", stop)

    @property
    def url(self) -> str:
        return self.find()

    @url.setter
    def url(self, _: str) -> None:
        return


class Stand(Stack):
    """``find`` returns the URL at which the broker's primary is read now."""

    def __init__(
        self,
        folder: Path,
        broker: str,
        store: str,
        seed: int,
        find: Callable[[], str],
        queue_arguments: Any = None,
        **settings: Any,
    ) -> None:
        if not broker.startswith(("redis", "sentinel")):
            settings.setdefault("broker_transport_options", {"confirm_publish": True})
        super().__init__(folder, broker, store, wheel_shards=SHARDS, **settings)
        self._ledger, self._seed = folder / "ledger.jsonl", seed
        self._over = threading.Event()
        self.consumer = FollowedNotes(find, self._over)
        self.consumer.queue_arguments = queue_arguments
        self._consuming = threading.Thread(target=self.consumer.run, daemon=True)

    def __enter__(self) -> Self:
        self._consuming.start()
        try:
            for name in SCHEDULERS:
                self.beat(name)
            wait_until(self.is_held, "each shard has a holder", 60)
            self.python("client", "-m", "tests.network.client", str(self._ledger), str(self._seed))
            wait_until(lambda: len(self.consumer.notes) > 20, "tasks arrive", 60)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        super().close()
        self._over.set()
        self._consuming.join(patience())

    def is_held(self) -> bool:
        try:
            return len(self.holders()) == SHARDS
        except (StoreError, sqlalchemy.exc.SQLAlchemyError, psycopg.Error):  # it is failing over
            return False

    def ledger(self) -> list[dict[str, Any]]:
        return read_lines(self._ledger)

    def sent(self) -> set[str]:
        return {line["sent"] for line in self.ledger() if "sent" in line}

    def await_load(self, count: int) -> None:
        """Wait until the broker has accepted so many more tasks."""
        before = len(self.sent())
        wait_until(lambda: len(self.sent()) >= before + count, f"{count} more tasks are sent", 90)

    def await_recovery(self) -> float:
        """Wait until a task arrives that is sent from now on; returns the seconds that it took."""
        began_s, before = time.monotonic(), {line["begun"] for line in self.ledger() if "begun" in line}
        wait_until(lambda: bool(self.consumer.arrived - before), "a new task arrives", 120)
        wait_until(self.is_held, "each shard has a holder", 60)
        return time.monotonic() - began_s

    def said(self) -> int:
        """Return how many messages the schedulers said that the store lost."""
        return sum(int(count) for name in SCHEDULERS for count in SAID.findall(self[name].said()))

    def stored(self) -> set[str]:
        """Return the tasks that the store has, pending or as history."""
        store = open_store(self.store, shards=None, create=False)
        assert isinstance(store, SqlStore)
        with closing(store), store._database.reading() as connection:
            return set(connection.execute(select(schema.timer.c.task_id)).scalars())

    def settle(self, scenario: str, seconds: float = 60) -> Account:
        """End the client, wait for all that is due and not gone, and account for each task."""
        self["client"].kill()
        lines = self.ledger()
        etas = {line["begun"]: line["eta_ms"] for line in lines if "begun" in line}
        asked = {id_ for line in lines for id_ in line.get("asked", ())}
        done = {id_ for line in lines for id_, said in line.get("answered", {}).items() if said == "done"}
        sent = self.sent()
        wait_until(lambda: sum(self._depths()) == 0, "the wheel queues are empty", 60)
        gone = sent - self.stored()
        until_s = time.monotonic() + patience(seconds)
        while sent - asked - gone - self.consumer.arrived and time.monotonic() < until_s:
            time.sleep(0.2)
        notes = [{**note, "args": [etas[note["id"]]]} for note in self.consumer.notes]
        verdict = judge(sent - asked, etas.keys() - (sent - asked), notes)
        account = Account(scenario, verdict, len(gone), self.said())
        account.broken |= verdict.broken()
        if lost := set(verdict.lost) - gone:
            account.broken["lost"] = sorted(lost)[:3]
        else:
            account.broken.pop("lost", None)
        if after := done & self.consumer.arrived:
            account.counts["ran after a cancel that was done"] = len(after)
        return account

    def _depths(self) -> list[int]:
        with self.app.connection_for_read() as connection:
            channel = connection.default_channel
            return [
                channel._size(f"wheel.{shard}") if hasattr(channel, "_size") else _size(channel, shard)
                for shard in range(SHARDS)
            ]


def _size(channel: Any, shard: int) -> int:
    """Return the messages of a wheel queue of RabbitMQ."""
    return int(channel.queue_declare(f"wheel.{shard}", passive=True).message_count)
