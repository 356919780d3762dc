"""The wheel's own Redis client, made of the broker URL and options as kombu reads them.

::

    redis://:secret@host:6380/2      rediss://host/0?ssl_cert_reqs=required      redis+socket:///run/redis.sock
    sentinel://a:26379;sentinel://b:26379/0      with transport option master_name

Unlike kombu's client it **repeats nothing by itself**, since only the caller knows what a repeated call means, and it
always has a timeout. It speaks RESP2, in which servers send only answers.

Source: ``_connparams`` and ``_sentinel_managed_pool`` in kombu 5.7 ``transport/redis.py``; kombu itself parses URLs.
Several servers in one ``redis://`` URL are refused: the offsets of one server mean nothing on another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import redis
from kombu.connection import Connection
from kombu.utils.imports import symbol_by_name
from kombu.utils.url import url_to_parts
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from celery_wheel.broker.redis.packer import OneBufferPacker
from celery_wheel.errors import SettingError

# Types where the libraries have none.
_connection: Any = Connection
_provider_class: Any = symbol_by_name
_sentinel: Any = Sentinel

DEFAULT_PORT = 6379
SENTINEL_PORT = 26379

#: Seconds; a longer wait gains nothing over another try.
SOCKET_TIMEOUT_S = 5.0

#: kombu's default: a connection that was idle for this many seconds is checked before it is used.
HEALTH_CHECK_INTERVAL_S = 25

# Without max_connections: each of the few calling threads has a connection, and a limit would fail one of them.
_PASSED_ON = ("socket_keepalive", "socket_keepalive_options", "client_name")
_TCP_ONLY = ("host", "port", "socket_connect_timeout", "socket_keepalive", "socket_keepalive_options")


@dataclass(frozen=True, slots=True)
class RedisLink:
    """A client with the name of its server."""

    client: redis.Redis
    db: int
    server: str  #: for messages: without the password


def connect(url: str, transport_options: Mapping[str, Any], ssl: Mapping[str, Any] | bool | None = None) -> RedisLink:
    """Return a client; its first call opens the connection.

    Args:
        ssl: Celery's ``broker_use_ssl``.
    """
    info = _connection(url, ssl=ssl or False, transport_options=dict(transport_options))
    parameters = _parameters(info, transport_options)
    db = parameters["db"]
    if info.transport_cls == "sentinel":
        pool = _sentinel_pool(info, transport_options, parameters)
        return RedisLink(redis.Redis(connection_pool=pool), db, f"Redis {transport_options['master_name']} by Sentinel")
    if len(info.alt or ()) > 1:
        raise SettingError(f"broker_url must be one Redis server, got {len(info.alt)}; use a proxy or Sentinel")
    place = parameters.get("path") or f"{parameters['host']}:{parameters['port']}"
    return RedisLink(redis.Redis(connection_pool=redis.ConnectionPool(**parameters)), db, f"Redis {place}/{db}")


def _parameters(info: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    timeout_s = options.get("socket_timeout") or SOCKET_TIMEOUT_S
    parameters: dict[str, Any] = {
        "host": info.hostname or "127.0.0.1",
        "port": info.port or (SENTINEL_PORT if info.transport_cls == "sentinel" else DEFAULT_PORT),
        "virtual_host": info.virtual_host,
        "username": info.userid,
        "password": info.password,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": options.get("socket_connect_timeout") or timeout_s,
        "health_check_interval": options.get("health_check_interval", HEALTH_CHECK_INTERVAL_S),
        **({"protocol": 2} if redis.VERSION >= (5,) else {}),  # older clients speak no other
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "connection_class": redis.Connection,
        "command_packer": OneBufferPacker(),
    }
    parameters.update({name: options[name] for name in _PASSED_ON if options.get(name) is not None})
    if isinstance(info.ssl, Mapping):  # kombu leaves a bare True without effect
        parameters.update(info.ssl, connection_class=redis.SSLConnection)
    if "://" in parameters["host"]:
        _use_unix_socket(parameters)
    parameters["db"] = _database(parameters.pop("virtual_host"))
    if provider := getattr(info, "credential_provider", None):  # kombu 5.4 has none
        _use_provider(parameters, provider)
    return parameters


def _use_unix_socket(parameters: dict[str, Any]) -> None:
    parts = url_to_parts(parameters["host"])
    for name in _TCP_ONLY:
        parameters.pop(name, None)
    parameters.update(parts.query)
    parameters.update(
        connection_class=redis.UnixDomainSocketConnection,
        path=f"/{parts.path}",
        username=parts.username,
        password=parts.password,
    )


def _database(virtual_host: str | int | None) -> int:
    text = str(virtual_host or 0).removeprefix("/") or "0"
    try:
        return int(text)
    except ValueError:
        raise SettingError(f"broker_url's path must be the number of a Redis database, got {text!r}") from None


def _use_provider(parameters: dict[str, Any], provider: Any) -> None:
    parameters["credential_provider"] = _provider_class(provider)() if isinstance(provider, str) else provider
    parameters.pop("username", None)
    parameters.pop("password", None)


def _sentinel_pool(info: Any, options: Mapping[str, Any], parameters: dict[str, Any]) -> Any:
    if not options.get("master_name"):
        raise SettingError("broker_transport_options must name the Sentinel group as 'master_name', got none")
    first = parameters.pop("host"), parameters.pop("port")
    found = [url_to_parts(url) for url in info.alt or ()]
    sentinels = [(parts.hostname, parts.port or SENTINEL_PORT) for parts in found if parts.scheme == "sentinel"]
    tls = parameters.pop("connection_class") is redis.SSLConnection
    sentinel_options = {
        "socket_timeout": parameters["socket_timeout"],
        "socket_connect_timeout": parameters["socket_connect_timeout"],
        "retry": Retry(NoBackoff(), 0),
        **(options.get("sentinel_kwargs") or {}),
    }
    sentinel = _sentinel(
        sentinels or [first],
        min_other_sentinels=options.get("min_other_sentinels", 0),
        sentinel_kwargs=sentinel_options,
        ssl=tls,
        **parameters,
    )
    return sentinel.master_for(options["master_name"], redis.Redis).connection_pool
