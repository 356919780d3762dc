"""The client's settings, and the texts of its errors."""

import ssl
from typing import Any

import pytest
import redis
from kombu import Connection
from redis import exceptions
from redis.backoff import NoBackoff
from redis.credentials import UsernamePasswordCredentialProvider

from celery_wheel.broker.errors import url_of
from celery_wheel.broker.redis.connect import SOCKET_TIMEOUT_S, connect, describe, redis_errors
from celery_wheel.errors import BrokerError, SettingError, WheelError


def settings(url: str, options: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    pool = connect(url, options or {}, **more).client.connection_pool
    return {"class": pool.connection_class, **pool.connection_kwargs}


@pytest.mark.parametrize("options", [{}, {"retry_on_timeout": True, "max_connections": 1, "socket_timeout": None}])
def test_the_client_repeats_no_call_and_never_waits_for_ever(options: dict[str, Any]) -> None:
    found = settings("redis://h/0", options)
    connection = found.pop("class")(**found)
    assert connection.retry._retries == 0
    assert isinstance(connection.retry._backoff, NoBackoff)
    assert not connection.retry_on_timeout
    assert connection.retry_on_error == []
    assert (connection.socket_timeout, connection.socket_connect_timeout) == (SOCKET_TIMEOUT_S, SOCKET_TIMEOUT_S)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://", {"host": "127.0.0.1", "port": 6379, "db": 0, "password": None}),
        ("redis://h", {"host": "h", "db": 0}),
        ("redis://h:1/", {"port": 1, "db": 0}),
        ("redis://u:p%40@h/7", {"username": "u", "password": "p@", "db": 7}),
        ("redis+socket:///run/r.sock?virtual_host=2", {"path": "/run/r.sock", "db": 2}),
        ("redis+socket://:p@/run/r.sock", {"path": "/run/r.sock", "password": "p", "db": 0}),
    ],
)
def test_urls_are_read_as_in_kombu(url: str, expected: dict[str, Any]) -> None:
    found = settings(url)
    assert {name: found[name] for name in expected} == expected


def test_options_are_passed_on() -> None:
    options = {"socket_timeout": 9, "socket_connect_timeout": 2, "socket_keepalive": True, "client_name": "w"}
    found = settings("redis://h", {**options, "visibility_timeout": 5, "health_check_interval": 0})
    assert {name: found[name] for name in options} == options
    assert found["health_check_interval"] == 0
    assert "visibility_timeout" not in found


def test_tls_by_url_and_by_broker_use_ssl() -> None:
    by_url = settings("rediss://h/0?ssl_cert_reqs=required&ssl_ca_certs=/ca")
    by_setting = settings("redis://h/0", ssl={"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": "/ca"})
    for found in (by_url, by_setting):
        assert found["class"] is redis.SSLConnection
        assert (found["ssl_cert_reqs"], found["ssl_ca_certs"]) == (ssl.CERT_REQUIRED, "/ca")


@pytest.mark.skipif(not hasattr(Connection("redis://"), "credential_provider"), reason="Kombu 5.4 reads none")
def test_a_credential_provider_replaces_the_password() -> None:
    provider = "redis.credentials.UsernamePasswordCredentialProvider"
    found = settings(f"redis://u:p@h/0?credential_provider={provider}")
    assert isinstance(found["credential_provider"], UsernamePasswordCredentialProvider)
    assert "password" not in found


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("redis://a/0;redis://b/0", "must be one Redis server, got 2"),
        ("redis://a/zero", "must be the number of a Redis database, got 'zero'"),
        ("sentinel://a/0", "as 'master_name', got none"),
    ],
)
def test_invalid_settings_are_refused(url: str, rule: str) -> None:
    with pytest.raises(SettingError, match=rule):
        connect(url, {})


def test_several_sentinels_are_used() -> None:
    link = connect("sentinel://:p@a:1/2;sentinel://b", {"master_name": "shop"})
    pool: Any = link.client.connection_pool
    asked = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    assert [(to["host"], to["port"]) for to in asked] == [("a", 1), ("b", 26379)]
    assert {to["retry"]._retries for to in asked} == {0}
    assert link.db == 2
    assert "shop" in link.server


def test_the_server_is_named_without_its_password() -> None:
    assert connect("redis://u:secret@h:1/2", {}).server == "Redis h:1/2"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://:p@h:1/0", "redis://:**@h:1/0"),
        ("redis://u@h:1/0", "redis://u@h:1/0"),
        ("redis://u:p@h:1/0", "redis://u:**@h:1/0"),
        ("redis+socket:///run/r.sock", "redis+socket:///run/r.sock"),
    ],
)
def test_a_url_shows_a_hidden_password_only_where_it_has_one(url: str, shown: str) -> None:
    assert url_of(Connection(url)) == shown


#: redis-py 4.6 and newer have a class of this error, and raise it without the code.
OutOfMemoryError = getattr(exceptions, "OutOfMemoryError", exceptions.ResponseError)


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (exceptions.TimeoutError("Timeout reading"), ("did not answer in time", "unknown")),
        (exceptions.ConnectionError("refused"), ("cannot be reached (refused)", "unknown")),
        (OSError("broken pipe"), ("cannot be reached (broken pipe)", "unknown")),
        (exceptions.BusyLoadingError("Redis is loading"), ("still loading", "nothing was changed")),
        (exceptions.AuthenticationError("invalid username-password pair"), ("password", "nothing was changed")),
        (exceptions.ReadOnlyError("You can't write"), ("is a replica", "point the broker URL")),
        (OutOfMemoryError("OOM command not allowed"), ("maxmemory", "nothing was changed")),
        (exceptions.NoPermissionError("no permissions"), ("does not permit", "nothing was changed")),
        (exceptions.ResponseError("Error running script: @user_script:9: -OOM command not"), ("is full", "nothing")),
        (exceptions.ResponseError("MISCONF Redis is configured to save"), ("cannot save", "nothing was changed")),
        (exceptions.ResponseError("NOREPLICAS Not enough"), ("too few replicas", "nothing was changed")),
        (
            exceptions.ResponseError("BUSY Redis is busy running a script"),
            ("another client's script", "nothing was changed"),
        ),
        (exceptions.MovedError("1 127.0.0.1:7000"), ("is a cluster", "nothing was changed")),
        (exceptions.ResponseError("ERR unknown"), ("an error (ERR unknown)", "nothing was changed")),
    ],
)
def test_an_error_has_state_consequence_and_remedy(error: Exception, parts: tuple[str, ...]) -> None:
    text = describe("Redis h:1/0", "publishing 5 messages of shard 3", error)
    assert text.startswith("Redis h:1/0 ")
    assert "while publishing 5 messages of shard 3; " in text
    assert text.count("; ") == 2
    for part in parts:
        assert part in text


def test_only_errors_of_redis_become_broker_errors() -> None:
    with pytest.raises(BrokerError) as caught, redis_errors("Redis", "x"):
        raise exceptions.ConnectionError("gone")
    assert isinstance(caught.value, WheelError)
    assert isinstance(caught.value, ConnectionError)
    assert isinstance(caught.value.__cause__, exceptions.ConnectionError)
    with pytest.raises(ZeroDivisionError), redis_errors("Redis", "x"):
        raise ZeroDivisionError
