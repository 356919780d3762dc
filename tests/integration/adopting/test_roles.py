"""Users with few rights, on real servers: the files of ``example_project/deploy/roles`` are enough, and no more."""

import itertools
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import amqp
import psycopg
import pytest
import redis

from celery_wheel.errors import StoreError
from tests.kit.manual import ROOT
from tests.kit.patience import patience, wait_until
from tests.kit.servers.postgres import USER, PostgresServer
from tests.kit.servers.rabbit import ON_RABBITMQ, RabbitServer
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack

ROLES = ROOT / "example_project" / "deploy" / "roles"


class Site:
    """A stack whose processes connect to the broker as users of their own; ``url(role)`` is the broker's URL."""

    def __init__(self, stack: Stack, url: Callable[[str], str]) -> None:
        self.stack, self.url = stack, url

    def start(self) -> None:
        beat = self.stack.beat(broker_url=self.url("scheduler"))
        beat.wait_for("at epoch")
        beat.wait_for("listens")
        worker = ("worker", "-P", "threads", "-c", "2", "-E", "-l", "INFO")  # with gossip, mingle and events
        self.stack.celery(*worker, broker_url=self.url("worker")).wait_for(" ready.")
        self.stack.app.conf.broker_url = self.url("producer")

    def use(self) -> None:
        """Send tasks of each kind, and revoke one; each ends."""
        app = self.stack.app
        sent = [app.send_task("add", (1, 2, f"p{n}"), countdown=0.3, priority=n) for n in (0, 5)]
        sent += [app.send_task("add", (1, 2, "grouped"), wheel={"group": "a"}), app.send_task("add", (1, 2, "now"))]
        sent.append(app.send_task("retried", ("again", 1)))
        assert [one.get(timeout=patience()) for one in sent] == [3, 3, 3, 3, "done"]
        far = app.send_task("add", (1, 2, "far"), countdown=3_600)
        wait_until(lambda: app.wheel.find(far.id), "the far task waits")
        app.control.revoke(far.id)
        wait_until(lambda: far.state == "REVOKED", "the far task is revoked")
        assert app.control.ping(timeout=patience(), limit=1)
        for name in ("beat", "worker"):
            assert "permi" not in self.stack[name].said().lower(), self.stack[name].said()


@pytest.fixture
def redis_site(tmp_path: Path) -> Iterator[Site]:
    file = tmp_path / "users.acl"
    file.write_text((ROLES / "redis.acl").read_text() + "user default on nopass ~* &* +@all\n")  # for this test's looks
    with RedisServer(tmp_path / "redis", aclfile=str(file)) as server:

        def url(role: str) -> str:
            return f"redis://{role}:{role}-secret@127.0.0.1:{server.port}/0"

        with Stack(tmp_path, server, result_backend=url("worker"), task_ignore_result=False) as stack:
            yield Site(stack, url)


def test_users_of_redis(redis_site: Site) -> None:
    redis_site.start()
    redis_site.use()
    _, said = redis_site.stack.celery("wheel", "doctor", broker_url=redis_site.url("scheduler")).end()
    assert "answers" in said
    denied = [(one["username"], one["object"]) for one in redis_site.stack.server.client().acl_log()]
    asked = {("scheduler", "config|get")}  # by the doctor, which says that it may not
    assert set(denied) <= asked, "nobody has tried more than it may"
    wrong = {
        "producer": ["LRANGE wheel.0 0 -1", "DEL wheel.0", "HSET wheel.offset.0 epoch 9", "RPOP celery", "DEL celery"],
        "worker": ["LRANGE wheel.0 0 -1", "LTRIM wheel.0 1 0", "HGETALL wheel.offset.0", "FLUSHALL", "CONFIG GET *"],
        "scheduler": ["BRPOP celery 1", "LRANGE celery 0 -1", "DEL celery", "FLUSHALL", "KEYS *", "SHUTDOWN"],
    }
    for role, commands in wrong.items():
        with redis.Redis.from_url(redis_site.url(role)) as client:
            for command in commands:
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.execute_command(*command.split())


def test_a_scheduler_with_the_user_of_a_producer_says_so(redis_site: Site) -> None:
    beat = redis_site.stack.beat(broker_url=redis_site.url("producer"))
    beat.wait_for("does not permit this")
    assert "Users with few rights" in beat.said()


@pytest.fixture
def rabbit_site(tmp_path: Path, rabbit_server: RabbitServer, redis_server: RedisServer) -> Iterator[Site]:
    base = rabbit_server.fresh()
    host = base.rpartition("/")[2]
    users = {}
    for line in (ROLES / "rabbitmq.sh").read_text().splitlines():
        if line.startswith("rabbitmqctl set_permissions"):
            _, _, role, *rights = shlex.split(line)
            users[role] = f"{role}-{host}"  # other tests have users of their own on this server
            rabbit_server.ctl("add_user", users[role], "secret")
            rabbit_server.ctl("set_permissions", "-p", host, users[role], *rights)

    def url(role: str) -> str:
        return f"amqp://{users[role]}:secret@127.0.0.1:{rabbit_server.port}/{host}"

    with Stack(tmp_path, base, result_backend=redis_server.url, task_ignore_result=False) as stack:
        yield Site(stack, url)


@ON_RABBITMQ
def test_users_of_rabbitmq(rabbit_site: Site) -> None:
    rabbit_site.start()
    rabbit_site.use()
    wrong: dict[str, list[Callable[[Any], Any]]] = {
        "producer": [lambda one: one.basic_get("wheel.0"), lambda one: one.queue_purge("wheel.0.holder")],
        "worker": [lambda one: one.basic_get("wheel.0"), lambda one: one.queue_delete("wheel.0.holder")],
        "scheduler": [lambda one: one.basic_get("celery"), lambda one: one.queue_purge("celery")],
    }
    for role, acts in wrong.items():
        for act in acts:
            _, _, rest = rabbit_site.url(role).partition("://")
            user, _, place = rest.partition("@")
            name, password = user.split(":")
            address, _, host = place.partition("/")
            with (
                amqp.Connection(address, name, password, virtual_host=host) as connection,
                pytest.raises(amqp.exceptions.AccessRefused),
            ):
                act(connection.channel())


@pytest.mark.slow
def test_users_of_postgresql(tmp_path: Path, redis_server: RedisServer) -> None:
    before, _, after = (ROLES / "postgresql.sql").read_text().partition("-- After")
    with PostgresServer() as server:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(before)

        def url(role: str) -> str:
            return server.url().replace(f"{USER}@", f"{role}@")

        with Stack(tmp_path, redis_server.url, url("scheduler")) as stack:
            stack.wait_for_holder(stack.beat())
            with psycopg.connect(url("scheduler"), autocommit=True) as connection:
                connection.execute("--" + after)
            sender = stack.make_app(**{**stack.settings, "wheel_store": url("sender")})
            reader = stack.make_app(**{**stack.settings, "wheel_store": url("reader")})
            result = sender.send_task("note", countdown=3_600)
            wait_until(lambda: reader.wheel.find(result.id), "the reader sees the task")
            assert sender.wheel.schedule_many([{"task": "note", "countdown": 3_600}]).count == 1
            assert reader.wheel.overview().shards
            with pytest.raises(StoreError, match=r"does not permit .*Users with few rights"):
                reader.wheel.cancel(result.id)
            assert sender.wheel.cancel(result.id) == "done"
            assert "superuser" not in stack.celery("wheel", "doctor").end()[1]
            assert "superuser" in stack.celery("wheel", "doctor", wheel_store=server.url()).end()[1]
            wrong = "UPDATE wheel_timer SET due_ms = 0", "DELETE FROM wheel_audit", "DROP TABLE wheel_meta"
            for role, statement in itertools.product(("sender", "reader"), wrong):
                with (
                    psycopg.connect(url(role), autocommit=True) as connection,
                    pytest.raises(psycopg.errors.InsufficientPrivilege),
                ):
                    connection.execute(statement)
