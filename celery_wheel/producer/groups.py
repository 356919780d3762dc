"""The group of a call whose option ``wheel`` names none.

::

    a retry         the group of its task, or none
    another call    its route's ──► that of the function wheel_group ──► that of the running task ──► none

A worker knows the group of the running task by a header of its message. A call with a key or a unique name that would
choose another shard does not inherit it. With ``wheel_inherit_group = False`` no call inherits, also no retry.

Only an app with the function, or a call from within a task of a group, looks the route up here; Celery does so again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kombu.utils import imports

from celery_wheel.broker.envelope import GROUP
from celery_wheel.conf import Conf
from celery_wheel.errors import SettingError
from celery_wheel.producer.options import NO_GROUP, PLAIN, CallOptions, parse
from celery_wheel.values.text import group_name_rule, group_rule

#: kombu carries no types for it.
_imported: Any = imports.symbol_by_name

#: Arguments of ``send_task`` that the function gets by themselves.
_OWN = frozenset(("name", "args", "kwargs"))


def may_name_group(app: Any) -> bool:
    """Whether a call without a delay, a group and a route may have a group all the same."""
    running = app.current_worker_task
    return (running is not None and _group_of(running) is not None) or Conf(app).group is not None


def with_group(app: Any, options: CallOptions, call: Mapping[str, Any]) -> CallOptions:
    """Return the options of a call, which name no group, with its group; ``call`` has the arguments of ``send_task``.

    Raises SettingError where the function fails, and ValueError for a key or a unique name beside its group.
    """
    conf, running = Conf(app), app.current_worker_task
    inherited = None
    if running is not None and conf.inherit_group:
        inherited = _group_of(running)
        if call.get("task_id") == running.request.id and call["name"] == running.name:
            return replace(options, group=inherited if _fits(inherited, options) else NO_GROUP)
    function = conf.group
    if function is None and inherited is None:
        return options
    both = options.over(_route(app, call))
    group = both.group
    if both.native or group is not None or both.batch is not None:  # a batch has the calls of several groups
        return replace(options, group=group)
    if function is not None:
        group = _named(function, call)
    if group is None and _fits(inherited, both):
        group = inherited
    replace(both, group=group).checked()
    return replace(options, group=group)


def _fits(inherited: str | None, options: CallOptions) -> bool:
    return inherited is not None and group_rule(inherited, options.key, options.unique) is None


def _group_of(running: Any) -> str | None:
    """Return the group of a running task; any text may be in a header of a message of another producer."""
    found: Any = getattr(running.request, GROUP, None)
    return None if found is None or group_name_rule(found) else found


def _route(app: Any, call: Mapping[str, Any]) -> CallOptions:
    """Return the wheel's options of a call's route, as Celery will look it up."""
    router = call.get("router") or app.amqp.router
    name, others = call.get("route_name") or call["name"], {**call}
    found = router.lookup_route(name, call.get("args"), call.get("kwargs") or {}, others, call.get("task_type"))
    return parse(found.get("wheel")) if isinstance(found, Mapping) else PLAIN


def _named(function: Any, call: Mapping[str, Any]) -> str | None:
    """Return the result of the function of the setting. Raises SettingError where it is no group."""
    task, options = call["name"], {name: value for name, value in call.items() if name not in _OWN}
    try:
        if isinstance(function, str):
            function = _imported(function)
        found: Any = function(task, call.get("args") or (), call.get("kwargs") or {}, options)
    except Exception as error:
        raise SettingError(
            f"wheel_group must name the group of task {task}, or None, but {function!r} raised {error!r}; nothing was "
            "sent; correct the function, or name the group in the call: wheel={'group': …}"
        ) from error
    if found is not None and (rule := group_name_rule(found)):
        raise SettingError(
            f"wheel_group must return {rule}, or None, got {found!r:.60} for task {task}; nothing was sent; correct "
            f"{function!r}"
        )
    group: str | None = found
    return group
