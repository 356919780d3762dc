"""What Redis says when it does not do what it was asked, as BrokerError: state, consequence, remedy.

Only the state after a lost connection or a timeout is unknown. An error reply is an answer: the scripts are
written so that nothing was done then (``publish.lua`` says why), and the same call is simply made again later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from redis import exceptions

from celery_wheel.errors import BrokerError

_UNKNOWN = "whether it took effect is unknown, and repeating it is safe"
_NOTHING = "nothing was done, and nothing is lost"

#: The code of an error reply → what is the matter, what helps.
_REPLIES = {
    "LOADING": ("is still loading its data set", "wait until it has"),
    "NOAUTH": ("asks for a password", "put user and password into the broker URL"),
    "WRONGPASS": ("does not know this user and password", "correct them in the broker URL"),
    "NOPERM": ("does not permit this", "give its user the commands and keys that producers, workers and wheel use"),
    "READONLY": ("is a replica and takes no writes", "point the broker URL at the primary"),
    "OOM": ("is full (maxmemory)", "raise maxmemory, or let the workers empty their queues"),
    "MISCONF": ("takes no writes because it cannot save to disk", "free its disk, or look into its log"),
    "NOREPLICAS": ("takes no writes because it has too few replicas", "bring the replicas back"),
    "MASTERDOWN": ("is a replica whose primary is down", "point the broker URL at the primary"),
    "BUSY": ("is busy with somebody's script", "wait, or end that one with SCRIPT KILL"),
    "WRONGTYPE": ("has something else under one of the wheel's own keys", "choose another wheel_namespace"),
    "CLUSTERDOWN": ("is a cluster that is down", "kombu's Redis transport wants a server that is no cluster"),
    "CROSSSLOT": ("is a cluster", "kombu's Redis transport wants a server that is no cluster"),
    "MOVED": ("is a cluster", "kombu's Redis transport wants a server that is no cluster"),
}

#: redis-py takes the code off the text of the replies that it knows, and makes it the type.
_TYPES: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.AuthenticationError, "WRONGPASS"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.MovedError, "MOVED"),
    (exceptions.ClusterCrossSlotError, "CROSSSLOT"),
    (exceptions.MasterDownError, "MASTERDOWN"),
)

_CODE = re.compile(rf"\b({'|'.join(_REPLIES)})\b")


@contextmanager
def answering(server: str, doing: str) -> Iterator[None]:
    """Whatever goes wrong between here and ``server`` is a BrokerError that says what it means."""
    try:
        yield
    except (exceptions.RedisError, OSError) as error:
        raise BrokerError(describe(server, doing, error)) from error


def describe(server: str, doing: str, error: Exception) -> str:
    code = next((code for kind, code in _TYPES if isinstance(error, kind)), None)
    if code is None and (found := _CODE.search(str(error))):
        code = found[1]
    if code is not None:
        state, remedy = _REPLIES[code]
        return f"{server} {state} ({error}) while {doing}; {_NOTHING}; {remedy}"
    if isinstance(error, exceptions.TimeoutError):
        return f"{server} did not answer in time while {doing}; {_UNKNOWN}; check its load and the network to it"
    if isinstance(error, (exceptions.ConnectionError, OSError)):
        return f"{server} cannot be reached ({error}) while {doing}; {_UNKNOWN}; check that it runs and the network"
    return f"{server} answered with an error ({error}) while {doing}; {_NOTHING}; see the server's log"
