"""Overrides: the check whether only Celery's own code makes the messages of an app and of a task.

::

    class by class, each definition of     an app     send_task                            }  a plain function that was
                                           its amqp   as_task_v2, send_task_message, …     }  defined in one of MODULES
                                           a router   route, lookup_route, …               }
                                           a task     apply_async, shadow_name, …          }

The globals of its function, which ``functools.wraps`` does not copy, identify a wrapper; its type identifies a proxy
around a function. An app is not plain if a part may depend on the row in a way that two samples can miss: a router that
is a function may read the arguments, and a route's jitter is random for each row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from types import FunctionType, MethodType
from typing import Any

from celery.app.routes import MapRoute, Router

MODULES = frozenset(
    [
        "celery.app.amqp",
        "celery.app.base",
        "celery.app.routes",
        "celery.app.task",
        "celery_wheel.app",
        "celery_wheel.producer.interception",
    ]
)

_APP = ("send_task",)
_AMQP = ("as_task_v2", "create_task_message", "send_task_message", "_create_task_sender")
_ROUTER = ("route", "expand_destination", "lookup_route", "query_router")
_TASK = ("apply_async", "shadow_name", "_get_exec_options")


def is_plain_app(app: Any) -> bool:
    """Whether messages of the app's tasks depend on their rows only as in Celery's protocol 2."""
    amqp, conf = app.amqp, app.conf
    router = amqp.router
    return (
        conf.task_protocol == 2
        and not conf.task_send_sent_event
        and amqp.create_task_message == amqp.as_task_v2
        and _is_celerys(app, _APP)
        and _is_celerys(amqp, _AMQP)
        and type(router) is Router
        and _is_celerys(router, _ROUTER)
        and all(type(routes) is MapRoute and _is_celerys(routes, ("__call__",)) for routes in router.routes)
        and not any(_has_jitter(route) for routes in router.routes for route in _routes(routes))
    )


def is_plain_task(task: Any) -> bool:
    """Whether only Celery's own code makes the task's messages; None is a task of which only the name is known."""
    return task is None or (_is_celerys(task, _TASK) and getattr(task, "_dump_pydantic_arguments", None) is None)


def _is_celerys(thing: Any, names: tuple[str, ...]) -> bool:
    return all(_is_defined_by_celery(part) for name in names for part in _definitions(thing, name))


def _definitions(thing: Any, name: str) -> Iterator[Any]:
    """Generate an object's own attribute of that name, and those of its classes."""
    for owner in (vars(thing), *map(vars, type(thing).__mro__)):
        if name in owner:
            yield owner[name]


def _is_defined_by_celery(part: Any) -> bool:
    if isinstance(part, partial):  # ``divert_sender`` around the sender of an app that was used before
        return not part.keywords and all(_is_defined_by_celery(one) for one in (part.func, *part.args[-1:]))
    if isinstance(part, property):
        return _is_defined_by_celery(part.fget)
    if isinstance(part, cached_property):
        return _is_defined_by_celery(part.func)
    if isinstance(part, classmethod | staticmethod | MethodType):
        return _is_defined_by_celery(part.__func__)
    return type(part) is FunctionType and part.__globals__.get("__name__") in MODULES


def _routes(router: MapRoute) -> Iterator[Any]:
    yield from router.map.values()
    yield from router.patterns.values()


def _has_jitter(route: Any) -> bool:
    try:
        wheel = dict(route).get("wheel")
    except (TypeError, ValueError):  # the name of a queue
        return False
    return isinstance(wheel, Mapping) and bool(wheel.get("jitter"))
