"""The wheel's own Redis client: made of the broker URL as kombu reads it, its errors as BrokerError, its Lua scripts.

Unlike kombu's client it **repeats nothing by itself**, since only the caller knows what a repeated call means, and it
always has a timeout. It speaks RESP2, in which servers send only answers. Several servers in one ``redis://`` URL are
refused: the offsets of one server mean nothing on another. Only the state after a lost connection or a timeout is
unknown: after an error reply the scripts have changed nothing (``publish.lua`` gives the reason).

Source: ``_connparams`` and ``_sentinel_managed_pool`` in kombu 5.7 ``transport/redis.py``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from operator import methodcaller
from typing import Any, NamedTuple, TypeVar, cast

import redis
from kombu.connection import Connection
from kombu.utils.imports import symbol_by_name
from kombu.utils.url import url_to_parts
from redis import Redis, exceptions
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError
from redis.retry import Retry
from redis.sentinel import Sentinel

from celery_wheel.broker.errors import CHECK_BROKER
from celery_wheel.broker.redis.replies import ReplyReader
from celery_wheel.errors import BrokerError, SettingError

_UNKNOWN = "whether it took effect is unknown, and repeating it is safe"
_NOTHING = "nothing was changed, and nothing is lost"
_NO_CLUSTER = "point the broker URL at a server that is no cluster, or at Sentinel"
_WHY = "kombu's Redis transport reads keys of several slots at a time"

#: The code of an error reply → the server's state, the remedy.
_REPLIES = {
    "LOADING": ("is still loading its data set", "wait until it has"),
    "NOAUTH": ("requires a password", "put user and password into the broker URL"),
    "WRONGPASS": ("does not accept this user and password", "correct them in the broker URL"),
    "NOPERM": ("does not permit this", 'give its user the commands and keys of the page "Users with few rights"'),
    "READONLY": ("is a replica and accepts no writes", "point the broker URL at the primary"),
    "OOM": ("is full (maxmemory)", "raise maxmemory, or let the workers empty their queues"),
    "MISCONF": ("accepts no writes because it cannot save to disk", "free its disk, or read its log"),
    "NOREPLICAS": ("accepts no writes because it has too few replicas", "start the replicas"),
    "MASTERDOWN": ("is a replica whose primary is down", "point the broker URL at the primary"),
    "BUSY": ("is busy with another client's script", "wait, or end the script with SCRIPT KILL"),
    "UNBLOCKED": ("has just changed between primary and replica", "point the broker URL at the primary"),
    "WRONGTYPE": ("has another type of value under one of the wheel's own keys", "choose another wheel_namespace"),
    "CLUSTERDOWN": ("is a cluster that is down", _NO_CLUSTER),
    "CROSSSLOT": ("is a cluster", _NO_CLUSTER),
    "MOVED": ("is a cluster", _NO_CLUSTER),
}

#: redis-py removes the code from the text of the replies that it knows, and raises a class of its own for each: more of
#: them in newer versions, so they are known by their names.
_TYPES = {
    "BusyLoadingError": "LOADING",
    "AuthenticationError": "WRONGPASS",
    "NoPermissionError": "NOPERM",
    "ReadOnlyError": "READONLY",
    "OutOfMemoryError": "OOM",
    "MovedError": "MOVED",
    "ClusterCrossSlotError": "CROSSSLOT",
    "MasterDownError": "MASTERDOWN",
}


# Types where the libraries have none.
_connection: Any = Connection
_provider_class: Any = symbol_by_name
_sentinel: Any = Sentinel

SENTINEL_PORT = 26379

#: Seconds; a longer wait gains nothing over another try.
SOCKET_TIMEOUT_S = 5.0


@contextmanager
def redis_errors(server: str, doing: str) -> Iterator[None]:
    """Raise errors of the client and the server as BrokerError; ``doing`` names the operation in its text."""
    try:
        yield
    except (exceptions.RedisError, OSError) as error:
        raise BrokerError(describe(server, doing, error)) from error


def is_silent(answer: Any) -> bool:
    """Whether an answer is the error of a server that did not give one."""
    return isinstance(answer, BrokerError) and isinstance(
        answer.__cause__, (exceptions.ConnectionError, exceptions.TimeoutError, OSError)
    )


def refuses_command(error: exceptions.ResponseError) -> bool:
    """Whether the server, or a proxy before it, does not serve a command; no state of the server is the cause."""
    return _code_of(error) in (None, "NOPERM")


def _code_of(error: Exception) -> str | None:
    code = next((_TYPES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _TYPES), None)
    if code is None and (found := re.search(rf"\b({'|'.join(_REPLIES)})\b", str(error))):
        code = found[1]
    return code


def describe(server: str, doing: str, error: Exception) -> str:
    """Return the text of a BrokerError: state, consequence, remedy."""
    code = _code_of(error)
    if code is not None:
        state, remedy = _REPLIES[code]
        return f"{server} {state} ({error}) while {doing}; {_NOTHING}; {remedy}"
    if isinstance(error, exceptions.TimeoutError):
        return f"{server} did not answer in time while {doing}; {_UNKNOWN}; check its load and the network to it"
    if isinstance(error, (exceptions.ConnectionError, OSError)):
        return f"{server} cannot be reached ({error}) while {doing}; {_UNKNOWN}; {CHECK_BROKER}"
    return f"{server} answered with an error ({error}) while {doing}; {_NOTHING}; see the server's log"


class OneBufferPacker:
    """Packs a command as one buffer; redis-py makes a buffer, and so a system call, of every 6 kB."""

    def pack(self, *arguments: Any) -> list[bytes]:
        name, *rest = arguments
        values = [*(name.encode() if isinstance(name, str) else name).split(), *rest]  # "CONFIG GET" is two words
        parts = [b"*%d\r\n" % len(values)]
        for value in values:
            data = value if isinstance(value, bytes) else str(value).encode()
            parts += (b"$%d\r\n" % len(data), data, b"\r\n")
        return [b"".join(parts)]


class Script:
    """A file of this folder, run by its digest.

    A server that lost its script cache (restart, SCRIPT FLUSH, failover) answers NOSCRIPT. The script has certainly not
    run then, and the call is repeated with the whole text.
    """

    def __init__(self, name: str) -> None:
        self.text = files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def __call__(
        self, client: Redis, keys: Sequence[str | bytes], args: Sequence[str | bytes | int]
    ) -> tuple[str, Any]:
        """Run the script; returns the first word of its answer and, where the answer has one, its value."""

        def alone() -> Operation[tuple[str, Any]]:
            found: tuple[str, Any] = yield self.request(keys, args)
            return found

        return ask(client, alone())

    def request(self, keys: Sequence[str | bytes], args: Sequence[str | bytes | int]) -> RedisRequest:
        """Return the same call as a request, with the same answer."""
        call = len(keys), *keys, *args
        return RedisRequest(methodcaller("evalsha", self.sha, *call), _read, methodcaller("eval", self.text, *call))


def _read(answer: Any) -> tuple[str, Any]:
    word, *rest = answer
    return word.decode(), rest[0] if rest else None


def _as_it_is(answer: Any) -> Any:
    return answer


_Result = TypeVar("_Result")


class RedisRequest(NamedTuple):
    """A request of an operation."""

    send: Callable[[Any], Any]  #: takes a pipeline
    read: Callable[[Any], Any] = _as_it_is
    again: Callable[[Any], Any] | None = None  #: sends the whole text of a script that the server does not know


#: An operation: yields its requests, one after the other, and returns its result.
Operation = Generator[RedisRequest, Any, _Result]


def ask(client: Redis, operation: Operation[_Result]) -> _Result:
    """Make the requests of an operation; returns its result."""
    [found] = ask_all(client, [operation])
    if isinstance(found, Exception):
        raise found
    return cast(_Result, found)


def ask_all(client: Redis, operations: Sequence[Operation[Any]]) -> list[Any]:
    """Make the requests of several operations in step, so that each round trip has a request of each.

    Returns their results; the error of an operation stands in the place of its result.
    """
    results: list[Any] = [None] * len(operations)
    requests = dict[int, RedisRequest]()

    def go_on(number: int, answer: Any) -> None:
        operation = operations[number]
        try:
            go = operation.throw if isinstance(answer, Exception) else operation.send
            requests[number] = go(answer)
        except StopIteration as end:
            results[number] = end.value
        except BrokerError as error:  # its frames hold the call's messages, and would hold themselves
            results[number] = error.with_traceback(None)
        except Exception as error:
            results[number] = error

    for number in range(len(operations)):
        go_on(number, None)
    while requests:
        pipeline, sent = client.pipeline(transaction=False), dict(requests)
        requests.clear()
        for request in sent.values():
            request.send(pipeline)
        try:
            answers = pipeline.execute(raise_on_error=False)
        except (exceptions.RedisError, OSError) as error:  # of the connection: of each operation
            answers = [error.with_traceback(None)] * len(sent)
        for (number, request), answer in zip(sent.items(), answers, strict=True):
            if isinstance(answer, NoScriptError) and request.again is not None:
                requests[number] = request._replace(send=request.again, again=None)
            else:
                go_on(number, answer if isinstance(answer, Exception) else request.read(answer))
    return results


ADOPT, CHANGE, CLAIM, PUBLISH, TRIM, VERIFY = map(Script, ("adopt", "change", "claim", "publish", "trim", "verify"))


@dataclass(frozen=True, slots=True)
class RedisLink:
    """A client with the name of its server."""

    client: redis.Redis
    db: int
    server: str  #: for messages: without the password


def connect(
    url: str, transport_options: Mapping[str, Any], ssl: Mapping[str, Any] | bool | None = None, max_item: int = 2**63
) -> RedisLink:
    """Return a client; its first call opens the connection.

    ``ssl`` is Celery's ``broker_use_ssl``; of an item of more than ``max_item`` bytes, a reply has a ``Cut``.
    """
    info = _connection(url, ssl=ssl or False, transport_options=dict(transport_options))
    parameters = _parameters(info, transport_options) | {"parser_class": partial(ReplyReader, max_item)}
    db = parameters["db"]
    if info.transport_cls == "sentinel":
        pool = _sentinel_pool(info, transport_options, parameters)
        return RedisLink(redis.Redis(connection_pool=pool), db, f"Redis {transport_options['master_name']} by Sentinel")
    if len(info.alt or ()) > 1:
        raise SettingError(f"broker_url must be one Redis server, got {len(info.alt)}; use a proxy or Sentinel")
    place = parameters.get("path") or f"{parameters['host']}:{parameters['port']}"
    server = f"Redis {place}/{db}"
    pool = redis.ConnectionPool(redis_connect_func=partial(_refuse_cluster, server), **parameters)
    return RedisLink(redis.Redis(connection_pool=pool), db, server)


def _refuse_cluster(server: str, connection: Any) -> None:
    """Set a new connection up, as redis-py does by itself, and raise SettingError where its server is of a cluster.

    Without the question, a cluster would refuse one of the wheel's commands or of kombu's much later, by CROSSSLOT.
    """
    connection.on_connect()
    connection.send_command("INFO", "cluster")
    try:
        found = connection.read_response()
    except exceptions.ResponseError:  # hosted servers may allow no INFO
        return
    if b"cluster_enabled:1" in found:
        connection.disconnect()
        raise SettingError(f"broker_url must be a Redis server that is no cluster, got {server}: {_WHY}; {_NO_CLUSTER}")


def _parameters(info: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    timeout_s = options.get("socket_timeout") or SOCKET_TIMEOUT_S
    parameters: dict[str, Any] = {
        "host": info.hostname or "127.0.0.1",
        "port": info.port or (SENTINEL_PORT if info.transport_cls == "sentinel" else 6379),
        "virtual_host": info.virtual_host,
        "username": info.userid,
        "password": info.password,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": options.get("socket_connect_timeout") or timeout_s,
        "health_check_interval": options.get("health_check_interval", 25),  # kombu's default
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "connection_class": redis.Connection,
        "command_packer": OneBufferPacker(),
    }
    # Without max_connections: each of the few calling threads has a connection, and a limit would fail one of them.
    for name in ("socket_keepalive", "socket_keepalive_options", "client_name"):
        if options.get(name) is not None:
            parameters[name] = options[name]
    if isinstance(info.ssl, Mapping):  # kombu leaves a bare True without effect
        parameters.update(info.ssl, connection_class=redis.SSLConnection)
    if "://" in parameters["host"]:
        _use_unix_socket(parameters)
    if redis.VERSION >= (5,):  # older clients speak no other
        parameters["protocol"] = 2  # also where the address of a socket names another
    parameters["db"] = _database(parameters.pop("virtual_host"))
    if provider := getattr(info, "credential_provider", None):  # kombu 5.4 has none
        del parameters["username"], parameters["password"]
        parameters["credential_provider"] = _provider_class(provider)() if isinstance(provider, str) else provider
    return parameters


def _use_unix_socket(parameters: dict[str, Any]) -> None:
    parts = url_to_parts(parameters["host"])
    for name in ("host", "port", "socket_connect_timeout", "socket_keepalive", "socket_keepalive_options"):
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
