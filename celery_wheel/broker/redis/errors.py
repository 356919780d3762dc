"""Redis's errors as BrokerError: state, consequence, remedy.

Only the state after a lost connection or a timeout is unknown. An error reply is an answer: the scripts then have
changed nothing (``publish.lua`` gives the reason), and the engine repeats the call later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from redis import exceptions

from celery_wheel.broker.errors import CHECK_BROKER
from celery_wheel.errors import BrokerError

_UNKNOWN = "whether it took effect is unknown, and repeating it is safe"
_NOTHING = "nothing was changed, and nothing is lost"
_NO_CLUSTER = "kombu's Redis transport needs a server that is no cluster"

#: The code of an error reply → the server's state, the remedy.
_REPLIES = {
    "LOADING": ("is still loading its data set", "wait until it has"),
    "NOAUTH": ("requires a password", "put user and password into the broker URL"),
    "WRONGPASS": ("does not accept this user and password", "correct them in the broker URL"),
    "NOPERM": ("does not permit this", "give its user the commands and keys that producers, workers and wheel use"),
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

_CODE = re.compile(rf"\b({'|'.join(_REPLIES)})\b")


@contextmanager
def redis_errors(server: str, doing: str) -> Iterator[None]:
    """Raise errors of the client and the server as BrokerError; ``doing`` names the operation in its text."""
    try:
        yield
    except (exceptions.RedisError, OSError) as error:
        raise BrokerError(describe(server, doing, error)) from error


def refuses_command(error: exceptions.ResponseError) -> bool:
    """Whether the server, or a proxy before it, does not serve a command; no state of the server is the cause."""
    return _code_of(error) in (None, "NOPERM")


def _code_of(error: Exception) -> str | None:
    code = next((_TYPES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _TYPES), None)
    if code is None and (found := _CODE.search(str(error))):
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
