"""Makes a replay of this version: a scheduler stops in the middle of its work; its store and queue are written."""

import json
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from celery.schedules import crontab
from sqlalchemy import update

from celery_wheel.broker import shard_of, wheel_queue_name
from celery_wheel.broker.transport import broker_for
from celery_wheel.bulk_load.renderer import Renderer
from celery_wheel.bulk_load.row import RowReader
from celery_wheel.conf import Conf
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.round import run_round
from celery_wheel.errors import StoreUnusable
from celery_wheel.scheduler.service import limits_of
from celery_wheel.store.message_pack import pack
from celery_wheel.store.model import CANCEL, SCHEMA_VERSION
from celery_wheel.store.schedule_model import OCCURRENCE, SCHEDULE
from celery_wheel.store.sql.schema import tombstone
from celery_wheel.store.store_model import PartChunk, PartResult
from celery_wheel.timing import SystemClock
from celery_wheel.values.text import END_OF_TIME_MS
from tests.kit.patience import wait_until
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.rabbit import RabbitServer
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack
from tests.replays import places
from tests.replays.judge import picture
from tests.replays.scenes import FAR, NAMES, QUEUES, OfTask, Scene, kinds, row

SHARDS = 2

#: Tasks of a replay are due so long after its beginning: none of them is dispatched while it is made.
AHEAD = timedelta(minutes=4)


def main(into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    expected: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with RedisServer(folder / "redis") as redis, stack_of(folder / "1", redis.url) as stack:
            expected["redis"] = Making(stack).run(partial(places.write_redis, stack.redis, into / "queue.redis.json"))
            places.write_sqlite(stack.file, into / "store.sqlite3.xz")
        with (
            RabbitServer(folder / "rabbitmq") as rabbit,
            PostgresServer() as postgres,
            stack_of(folder / "2", rabbit.fresh(), postgres.new_database()) as stack,
        ):
            names = [wheel_queue_name("wheel", shard) for shard in range(SHARDS)]
            last, into_file = Making(stack), into / "queue.rabbitmq.json"
            expected["rabbitmq"] = last.run(partial(places.write_rabbitmq, stack.app, names, into_file))
            places.write_postgresql(stack.store, into / "store.sql")
    places.write(into / "expected.json", expected)
    while datetime.now(UTC) < last.eta:  # it can be replayed at once
        time.sleep(1)


def stack_of(folder: Path, broker: str, store: str = "") -> Stack:
    """Return a stack whose history is kept for as long as anybody replays it."""
    kept = {"wheel_history_retention": 3e9, "wheel_audit_retention": 3e9}
    return Stack(folder, broker, store, queues=QUEUES, wheel_shards=SHARDS, accept_content=["json", "pickle"], **kept)


def soon() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=0.2)


class Making:
    def __init__(self, stack: Stack) -> None:
        self.stack, self.app = stack, stack.app
        self.wheel: Any = self.app.wheel
        self.eta = datetime.now(UTC) + AHEAD
        self.due: list[Any] = []  #: messages of Celery, one for each that is due
        self.names: set[str] = {"never sent"}

    def run(self, write_queue: Callable[[], None]) -> dict[str, Any]:
        self.expiring()
        with self.stack.service():
            self.gates()
            self.history()
            self.schedules()
            self.accepted()
        self.loads()
        self.in_the_inbox()
        self.in_the_queue()
        with self.wheel.store.database.writing() as connection:
            connection.execute(update(tombstone).values(until_ms=END_OF_TIME_MS - 1))
        write_queue()
        assert datetime.now(UTC) < self.eta, "the machine is too slow: none of the tasks may be due before the end"
        found = {"picture": picture(self.wheel, self.names), "due": self.due}
        self.wheel.close()
        return found

    # -- sending -----------------------------------------------------------------------------------------

    def send(self, scene: Scene, eta: datetime | None = None) -> None:
        """Send a task that is due soon: its message of Celery is expected in its queue then."""
        self.of_celery(scene)
        self.names.add(scene.task_id)
        scene.send(self.app, eta or self.eta)

    def of_celery(self, scene: Scene) -> None:
        scene.send(self.app, None)
        found: list[Any] = []

        def there() -> bool:
            found.extend(one for one in places.take(self.app, NAMES) if OCCURRENCE not in one["headers"])
            return bool(found)

        wait_until(there, f"Celery's message of {scene.task_id} is there")
        self.due += found

    def later(self, name: str, **wheel: Any) -> None:
        """Send a task that is pending for ever."""
        self.names.add(name)
        Scene(name, wheel=wheel).send(self.app, FAR)

    def wait_for(self, state: str, *names: str) -> None:
        self.names.update(names)
        wait_until(lambda: all(self.state(name) == state for name in names), f"{names} are {state}")

    def state(self, name: str) -> str | None:
        try:
            found = self.wheel.get(name)
        except StoreUnusable:  # the scheduler is about to make the store
            return None
        return None if found is None else str(found.state)

    # -- the parts, in their order -------------------------------------------------------------------------

    def expiring(self) -> None:
        """Send a task that the scheduler finds later than its misfire allows."""
        Scene("expired", wheel={"misfire": 0.05}).send(self.app, soon())
        time.sleep(0.5)

    def gates(self) -> None:
        self.wait_for("expired", "expired")
        self.wheel.pause(queue="paused", reason="provider is down", actor="ann")
        self.wheel.pause(queue="mail")
        self.wheel.resume(queue="mail", over=600)

    def history(self) -> None:
        for n in range(3):
            Scene(f"dispatched {n}").send(self.app, soon())
        self.wait_for("dispatched", *(f"dispatched {n}" for n in range(3)))
        assert len(places.take(self.app, NAMES)) == 3
        Scene("rejected", {"exchange": "nowhere", "routing_key": "x"}).send(self.app, soon())
        self.wheel.store.put_inbox(0, [("message", b"no message")])
        for name in ("cancelled", "moved", "pending", "to cancel", "to move"):
            self.later(name)
        self.later("completed", watch=["order:1"])
        self.later("watching for ever", watch=["order:7"])
        self.later("first of its name", unique="one")
        self.later("second of its name", unique="one")
        self.wait_for("pending", "cancelled", "moved", "pending", "completed", "watching for ever", "to move")
        found = self.wheel.cancel(["cancelled", "never sent"], actor="ann", reason="paid")
        assert found == {"cancelled": "done", "never sent": "unknown"}
        assert self.wheel.reschedule("moved", eta=FAR + timedelta(days=1)) == "done"
        assert self.wheel.complete("order:1").done == 1
        self.wait_for("cancelled", "second of its name")

    def schedules(self) -> None:
        schedules = self.wheel.schedules
        for name in ("each second", "paused", "deleted"):
            schedules.create(name, 1, "note", [name], queue="ticks")
        schedules.create("nightly", crontab(minute=30, hour=2), "note", ["nightly"], zone="Europe/Berlin")
        schedules.create("guarded", 1, "note", ["guarded"], queue="ticks", overlap="skip")
        schedules.update("nightly", args=["changed"])
        broken = {"schedule": {"definition": json.dumps({"recurrence": 7}), "source": "api"}}
        command = {"do": "restore", "definitions": {"broken": broken}, "actor": "ann", "reason": ""}
        shard = shard_of(None, "broken", SHARDS)
        self.wheel.store.put_command(shard, SCHEDULE, json.dumps(command).encode())
        wait_until(lambda: schedules.get("broken") is not None, "the broken one is there")
        wait_until(lambda: len(schedules.history("each second").runs) > 2, "it has run")
        wait_until(lambda: len(schedules.history("guarded").skips) > 0, "it has skipped")
        schedules.pause("paused", "holidays", actor="ben")
        schedules.delete("deleted", reason="obsolete")
        schedules.pause("guarded")
        schedules.pause("each second")
        schedules.resume("each second")

    def accepted(self) -> None:
        for scene in kinds(self.app):
            self.send(scene)
        self.send(Scene("behind a pause", {"queue": "paused"}))
        self.wait_for("pending", *(name for name in self.names - {"never sent"} if self.state(name) is None))
        places.take(self.app, NAMES)

    def loads(self) -> None:
        loads, now_ms = self.wheel.store.loads, SystemClock().now_ms
        names = [name for name in (f"loaded {n}" for n in range(40)) if shard_of(None, name, SHARDS) == 0][:4]
        for name in names:
            self.of_celery(OfTask(name))
        self.names.update(names)
        chunks = [self.chunk(number, names[2 * number : 2 * number + 2]) for number in range(2)]
        for name in ("half", "open"):
            load = loads.begin(name, now_ms())
            claim, _ = loads.claim(load.id, load.run, 0)
            loads.put(claim, chunks)
            loads.finish(claim, len(chunks))
            if name == "half":
                loads.commit(load.id, load.run, {0: PartResult(claim.attempt, 4)}, now_ms())
        conf = Conf(self.app)
        with closing(broker_for(self.app, conf, self.wheel.store)) as edge:
            limits = replace(limits_of(conf), bulk_count=1)
            engine = Engine(0, "replay", self.wheel.store, edge, SystemClock(), limits)
            wait_until(lambda: bool(run_round(engine.tend())) and engine.held, "the shard is held")
            run_round(engine.ingest())
            run_round(engine.release())
        assert loads.count_pending() == 2

    def chunk(self, number: int, names: list[str]) -> PartChunk:
        with closing(Renderer(self.app, SHARDS, 2**20)) as renderer:
            calls = [RowReader(self.app).read(row(name, self.eta)) for name in names]
            made = [renderer.render(call) for call in calls]
        return PartChunk(number, 0, len(names), "digest", pack([(one.template, one.values) for one in made]))

    def in_the_inbox(self) -> None:
        names = [f"in the inbox {n}" for n in range(3)]
        for name in names:
            self.of_celery(OfTask(name))
        self.names.update(names)
        self.wheel.schedule_many([row(name, self.eta) for name in names])
        command = {"task_ids": ["to cancel"], "actor": "ann", "reason": "in the inbox"}
        shard = shard_of(None, "to cancel", SHARDS)
        self.wheel.store.put_command(shard, CANCEL, json.dumps(command).encode())

    def in_the_queue(self) -> None:
        """Leave messages in the wheel queues: of each kind, one that a tombstone cancels, one that waits."""
        for scene in kinds(self.app):
            # Its unique name is another: it would be cancelled if the accepted one were still pending.
            own = {name: f"queued {value}" if name == "unique" else value for name, value in scene.wheel.items()}
            self.send(scene._replace(task_id=f"queued, {scene.task_id}", wheel=own))
        Scene("never sent").send(self.app, self.eta)
        self.app.send_task("note", queue="celery", task_id="queued and far", eta=FAR)
        self.names.add("queued and far")
