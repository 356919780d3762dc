"""Destinations: the queues and exchanges to which a task may be sent, for producers and schedulers alike.

::

    reserved            the wheel's, Celery's and kombu's own names     refused at the call and at the acceptance
    wheel_destinations  names that no pattern of the list matches       refused at the call and at the dispatch,
                        (without a list: other names than the app's     unless a key has signed the message
                        own, if task_create_missing_queues is False)

A message with an exchange is judged by the name of the exchange, which stands for all queues that are bound to it; any
other message by the name of its queue. The list counts at the dispatch: a list that was made longer lets pending tasks
pass at their own due times, and no task that was not signed is published to another place, whatever its origin.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property, lru_cache
from glob import escape
from typing import Any
from weakref import WeakKeyDictionary

from celery_wheel.broker import is_own_name
from celery_wheel.conf import Conf
from celery_wheel.conf.setting import OWN_DESTINATIONS
from celery_wheel.store.model import Route

#: Names of Celery's and kombu's own. A message there would be obeyed as a command, taken for an event or a result, or
#: stop kombu's workers by a key of another type.
_RESERVED = r"""
    (.*[^0-9a-z])?pidbox                        # remote control, and its answers
    | celeryev([^0-9a-z].*)?                    # events
    | .*_kombu\.binding.*                       # on Redis, the queues of an exchange, and their deadlines
    | (.*[:/.|])?unacked(_index|_mutex)?        # on Redis, what workers hold
    | (.*[:/.|])?celery-task(set)?-meta-.*      # on Redis, results (of rpc://: a bare UUID, as a tenant's queue may be)
    | amq\.(gen|rabbitmq\.).*                   # on RabbitMQ, queues that a server has named, and its own
    """

#: kombu's separator between a queue and its priority in the name of a list.
_SEP = "\x06\x16"

_DECLARED = "task_queues (task_create_missing_queues is False)"

#: Routes whose judgement a scheduler remembers.
MAX_ROUTES = 10_000


@dataclass(frozen=True)
class Destinations:
    """The destinations of one installation; the defaults refuse reserved names only."""

    namespace: str = "wheel"  #: the first part of the names of the wheel's own queues
    allowed: tuple[str, ...] | None = None  #: patterns of queues and exchanges; None: all names
    events: str = "celeryev"  #: the first part of the names of queues of events
    exchanges: tuple[str, ...] = ()  #: Celery's exchanges of events and results, where they have names of their own
    setting: str = "wheel_destinations"  #: where ``allowed`` is from

    def is_reserved(self, name: str) -> bool:
        """Whether no task may have this queue or exchange: it is the wheel's, Celery's or kombu's."""
        queue = name.partition(_SEP)[0].strip()
        return is_own_name(self.namespace, queue) or self._is_reserved(queue) is not None

    def misuse(self, exchange: str, routing_key: str, queue: str | None) -> str:
        """Return the reason where a name in the destination is reserved; an empty text for a good destination."""
        return _misuse(self, exchange, routing_key, queue)

    def refusal(self, exchange: str, routing_key: str, queue: str | None, *, signed: bool = False) -> str:
        """Return the reason why no message may go there; an empty text where it may.

        ``signed``: a key of ``wheel_signing_keys`` signs the message.
        """
        if why := self.misuse(exchange, routing_key, queue):
            return why
        if signed or self.allowed is None or self._is_allowed(exchange or routing_key):
            return ""
        kind = "exchange" if exchange else "queue"
        return f"{self.setting} does not name its {kind}, {exchange or routing_key!r:.80}"

    @cached_property
    def _is_reserved(self) -> Any:
        own = rf"{re.escape(self.events)}\.[0-9a-f]{{8}}-[0-9a-f-]{{27}}"
        names = "|".join((own, *map(re.escape, self.exchanges)))
        return re.compile(f"{_RESERVED} | {names}", re.IGNORECASE | re.DOTALL | re.VERBOSE).fullmatch

    @cached_property
    def _is_allowed(self) -> Any:
        return re.compile("|".join(map(translate, self.allowed or ()))).fullmatch


@lru_cache(4_096)
def _misuse(of: Destinations, exchange: str, routing_key: str, queue: str | None) -> str:
    for name in (exchange or routing_key, queue or ""):
        if of.is_reserved(name):
            return f"{name!r:.80} is no task's queue, but one of the wheel, of Celery or of kombu"
    return ""


class RouteRefusals(dict[Route, str]):
    """By route, the reason why its messages may not be dispatched; each route is judged once."""

    def __init__(self, destinations: Destinations) -> None:
        super().__init__()
        self._destinations = destinations

    def __missing__(self, route: Route) -> str:
        if len(self) >= MAX_ROUTES:
            self.clear()
        found = self[route] = self._destinations.refusal(
            route.exchange, route.routing_key, route.queue, signed=route.signed
        )
        return found


#: App → the settings of the wheel with which its destinations were made, and these.
_made: WeakKeyDictionary[Any, tuple[Any, Destinations]] = WeakKeyDictionary()


def destinations_of(app: Any) -> Destinations:
    """Return the destinations of an app. Celery's own settings are read once, those of the wheel each time."""
    conf = Conf(app)
    key = conf.namespace, conf.destinations
    found = _made.get(app)
    if found is None or found[0] != key:
        found = _made[app] = key, _make(app, *key)
    return found[1]


def _make(app: Any, namespace: str, allowed: tuple[str, ...] | None) -> Destinations:
    conf, setting = app.conf, "wheel_destinations"
    if allowed is None and not conf.task_create_missing_queues:  # Celery itself sends to no other queue then
        allowed, setting = (OWN_DESTINATIONS,), _DECLARED
    if allowed is not None and OWN_DESTINATIONS in allowed:
        allowed = (*(one for one in allowed if one != OWN_DESTINATIONS), *sorted(map(escape, own_names(app))))
    exchanges = str(conf.event_exchange), str(conf.result_exchange)
    return Destinations(namespace, allowed, str(conf.event_queue_prefix), exchanges, setting)


def own_names(app: Any) -> set[str]:
    """Return the names of an app's default queue, of its ``task_queues``, of its routes, and of their exchanges."""
    from celery.app.routes import MapRoute, prepare  # the edges do without Celery

    conf = app.conf
    found: set[Any] = {conf.task_default_queue, conf.task_default_exchange}
    places: list[Any] = []
    for queue in app.amqp.Queues(conf.task_queues).values():  # ``app.amqp.queues`` has those of calls as well
        places += [queue, queue.exchange, *(bound.exchange for bound in queue.bindings or ())]
    for router in prepare(conf.task_routes):
        if isinstance(router, MapRoute):  # what a function returns is not known before its call
            for route in (*router.map.values(), *router.patterns.values()):
                options = {"queue": route} if isinstance(route, str) else route
                queue = options.get("queue")
                places += [queue, getattr(queue, "exchange", None), options.get("exchange")]
    found |= {getattr(place, "name", place) for place in places}
    return {name for name in found if isinstance(name, str) and name}
