"""The broker as the doctor asks it: how much waits, what is the oldest, what time it is. It answers soon or never.

Every call raises BrokerError when there is no answer. Redis is asked by the wheel's own client, which always has a
timeout; everything else through kombu, where a message cannot be looked at without taking it.
"""

from __future__ import annotations

from typing import Any, Protocol

from kombu.exceptions import OperationalError

from celery_wheel.broker.names import wheel_queue_name
from celery_wheel.broker.queues import wheel_queue
from celery_wheel.errors import BrokerError

PATIENCE_S = 3


class Server(Protocol):
    name: str  #: for people, without a password

    def waiting(self, shard: int) -> int:
        """How many messages are in the wheel queue of a shard; 0 where there is no such queue."""

    def oldest(self, shard: int) -> bytes | None:
        """The next of them, as it lies there; None where there is none, or it cannot be looked at."""

    def now_ms(self) -> int | None:
        """Its own clock; None where it tells none."""

    def close(self) -> None: ...


def connect(app: Any, transport: str, namespace: str) -> Server:
    """Raises BrokerError where nobody answers."""
    return RedisServer(app, namespace) if transport == "redis" else KombuServer(app, namespace)


class KombuServer:
    def __init__(self, app: Any, namespace: str) -> None:
        self._namespace = namespace
        self._connection = connection = app.connection_for_write()
        self.name = str(connection.as_uri())
        connection.connect_timeout = PATIENCE_S
        if connection.transport.driver_type == "amqp":
            timeouts = {"read_timeout": PATIENCE_S, "write_timeout": PATIENCE_S}
            connection.transport_options = {**(connection.transport_options or {}), **timeouts}
        try:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=PATIENCE_S)
        except (OperationalError, OSError, *connection.connection_errors) as error:
            connection.release()
            raise self._silent(error) from error

    def waiting(self, shard: int) -> int:
        queue: Any = wheel_queue(self._namespace, shard)
        try:
            with self._connection.channel() as channel:
                return int(queue(channel).queue_declare(passive=True).message_count)
        except self._connection.channel_errors:  # there is no such queue
            return 0
        except (OperationalError, OSError, *self._connection.connection_errors) as error:
            raise self._silent(error) from error

    def oldest(self, shard: int) -> bytes | None:
        return None

    def now_ms(self) -> int | None:
        return None

    def close(self) -> None:
        self._connection.release()

    def _silent(self, error: BaseException) -> BrokerError:
        return BrokerError(f"the broker at {self.name} does not answer ({error})")


class RedisServer:
    def __init__(self, app: Any, namespace: str) -> None:
        from celery_wheel.broker.redis.connect import connect as client_of
        from celery_wheel.broker.redis.layout import Layout

        options = {**(app.conf.broker_transport_options or {})}
        options["socket_timeout"] = options["socket_connect_timeout"] = PATIENCE_S
        link = client_of(app.conf.broker_write_url, options, app.conf.broker_use_ssl)
        self._client = link.client
        self._layout = Layout.from_options(options, link.db, "")
        self._namespace = namespace
        self.name = link.server
        self._asked("ping")

    def waiting(self, shard: int) -> int:
        return int(self._asked("llen", self._key(shard)))

    def oldest(self, shard: int) -> bytes | None:
        found: list[bytes] = self._asked("lrange", self._key(shard), -1, -1)
        return found[0] if found else None

    def now_ms(self) -> int | None:
        seconds, microseconds = self._asked("time")
        return int(seconds) * 1_000 + int(microseconds) // 1_000

    def told(self, section: str, field: str) -> str | None:
        """A line of INFO; None where this user may not ask, or the server does not say."""
        return self._if_allowed("info", section, field)

    def configured(self, name: str) -> str | None:
        """A line of its configuration; None where CONFIG is not allowed, as with most who rent servers out."""
        return self._if_allowed("config_get", name, name)

    def _if_allowed(self, command: str, word: str, field: str) -> str | None:
        import redis

        try:
            found = self._asked(command, word).get(field)
        except BrokerError as error:
            if isinstance(error.__cause__, redis.ResponseError):
                return None
            raise
        return None if found is None else str(found)

    def close(self) -> None:
        self._client.connection_pool.disconnect()

    def _key(self, shard: int) -> str:
        return self._layout.list_key(wheel_queue_name(self._namespace, shard), None)

    def _asked(self, command: str, *words: Any) -> Any:
        import redis

        try:
            return getattr(self._client, command)(*words)
        except redis.RedisError as error:
            raise BrokerError(f"the broker at {self.name} does not answer ({error})") from error
