"""The app: ``celery_wheel.Celery`` instead of ``celery.Celery``, or ``install(app)`` where the app is made elsewhere.

1. Only delayed calls, transactional ones and those with an option that needs the store, like ``unique``, change. All
   other calls pass to Celery unchanged: a task with a past eta runs at once, with its eta.
2. The id of a delayed task is a UUIDv7, unless the caller chose one.
3. ``wheel=`` is removed here, from every source of a call's options: apply_async, signatures, retry, beat entries. So
   is the header with the group of the running task, which a retry copies: the message gets that of its own group.
4. ``install`` sets the app's class to a subclass of the class that it has. So it also works on an app that was used
   before, a second call changes nothing, and the app survives pickling. A ``send_task`` of the project's own class gets
   the caller's arguments in their form, except a delay for the wheel, which is an instant there.
5. With ``wheel_rescue`` messages with ``wheel=False`` are marked, or a worker would rescue them.

The app does not change ``task_always_eager``, which never sends, messages that are published without ``send_task``, and
messages of an ``amqp`` or a sender that the project has replaced.
"""

from __future__ import annotations

import inspect
import sys
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

import celery
from celery.app.amqp import AMQP
from celery.app.task import Context
from celery.signals import beat_init
from kombu.utils.objects import cached_property

from celery_wheel.broker.envelope import GROUP, NATIVE
from celery_wheel.conf import Conf, explained_names
from celery_wheel.conf.store import calling_module
from celery_wheel.errors import SettingError
from celery_wheel.producer.destination import is_eligible
from celery_wheel.producer.eta import due_time
from celery_wheel.producer.groups import may_name_group, with_group
from celery_wheel.producer.interception import WheelAMQP, WheelEta, divert_sender
from celery_wheel.producer.options import CallOptions, parse, with_batch
from celery_wheel.producer.transaction import inbox_of, is_transactional
from celery_wheel.store.schedule_model import OCCURRENCE
from celery_wheel.values.ids import uuid7
from celery_wheel.values.instants import us_of
from celery_wheel.values.log import get_logger

if TYPE_CHECKING:
    from celery_wheel.control import Wheel

App = TypeVar("App")

logger = get_logger(__name__)

#: Arguments that Celery's ``send_task`` accepts by position.
_POSITIONS = tuple(inspect.signature(celery.Celery.send_task).parameters)[1:-1]


class WheelApp:
    """Mixed into an app's class: ``send_task`` marks messages for the wheel, ``amqp`` diverts them."""

    @cached_property
    def amqp(self) -> Any:
        return _divert(super().amqp)  # Celery's, also cached

    @amqp.setter  # type: ignore[no-redef]  # mypy knows setters of property alone
    def amqp(self, amqp: Any) -> Any:
        return _divert(amqp) if isinstance(amqp, AMQP) else amqp

    def _load_config(self) -> Any:
        """Read the configuration as Celery does; its error about names says which one the wheel's scheduler has."""
        with explained_names():
            return super()._load_config()  # type: ignore[misc]

    @property
    def wheel(self) -> Wheel:
        """The ``celery_wheel.control.Wheel``, which queries and changes pending tasks."""
        from celery_wheel.control import wheel_of  # imports the store, which a producer does not need

        return wheel_of(self)

    def send_task(self, *args: Any, wheel: Any = None, **options: Any) -> Any:
        """Send a task as Celery does; ``wheel`` is described in ``celery_wheel.producer.options``."""
        call = {**dict(zip(_POSITIONS, args, strict=False)), **options}
        headers = options.get("headers")
        wheel_options = with_batch(call.get("task_type"), parse(wheel), headers)
        if headers and GROUP in headers:
            options["headers"] = {name: value for name, value in headers.items() if name != GROUP}
        if wheel_options.native and _is_delayed(call) and Conf(self).rescue:
            # Without the mark a worker would rescue it, like the message of a producer without the wheel.
            options["headers"] = {**(options.get("headers") or {}), NATIVE: True}
        elif not wheel_options.native and (
            _is_delayed(call) or wheel_options.transactional or wheel_options.need_store or _may_have_group(self, call)
        ):
            eta = self._wheel_eta(call, wheel_options)
            if eta is not None:
                changes = {"eta": eta, "task_id": call.get("task_id") or uuid7()}
                if "countdown" in call:
                    changes["countdown"] = None
                if len(args) > 3:  # after name, args and kwargs
                    args = tuple(changes.pop(name, value) for name, value in zip_longest(_POSITIONS[: len(args)], args))
                options.update(changes)
        send: Any = super().send_task  # type: ignore[misc]
        args, named = _split_arguments(send, args)
        return send(*args, **named, **options)

    def _wheel_eta(self, call: dict[str, Any], options: CallOptions) -> WheelEta | None:
        """Return the eta of a call for the wheel; None for a call that stays with Celery."""
        app: Any = self
        conf = Conf(app)
        now = app.now()
        now_us = us_of(now)
        countdown, eta = call.get("countdown"), call.get("eta")
        if conf.enabled or options.transactional:
            conf.check_once()
        diverts = conf.enabled and _diverts(app, call)
        if diverts and options.group is None:
            options = with_group(app, options, call)
        if options.transactional or (conf.enabled and is_transactional(app, options.transactional)):
            inbox_of(app)
            if not diverts:
                raise SettingError(
                    "wheel_transactional needs wheel_enabled = True, a transport that the wheel supports, and the "
                    "app's own broker; nothing was sent; wheel={'transactional': False} sends the task independently "
                    "of the transaction"
                )
            # A task that is due now as well: to send it at once would be before the commit.
            return WheelEta(due_time(app, now, countdown, eta or now), now_us // 1000, options)
        if not diverts:
            return None
        due = due_time(app, now, countdown, eta or now)
        if not options.need_store and (due.at_us <= now_us or due.at_us < now_us + conf.min_delay_ms * 1000):
            return None
        return WheelEta(due, now_us // 1000, options)

    def __reduce__(self) -> Any:
        reduced: Any = super().__reduce__()
        base = vars(type(self)).get("_mixed_into")
        if base is None:
            return reduced
        # Another process cannot import a class that install made by its name, but its base.
        function, (_, *args) = reduced
        return _restore, (function, (base, *args))


def _is_delayed(call: dict[str, Any]) -> bool:
    return bool(call.get("countdown") or call.get("eta"))


def _may_have_group(app: Any, call: dict[str, Any]) -> bool:
    """Whether a call without a delay may have a group; a message of a bulk load has the eta of the wheel already."""
    return may_name_group(app) and not isinstance(call.get("eta"), WheelEta)


def reports_ends(app: Any) -> bool:
    """Whether workers of the app report the ends of runs: they have the step."""
    return isinstance(app, WheelApp) and REPORTS in app.steps["consumer"]  # type: ignore[attr-defined]


def _diverts(app: Any, call: dict[str, Any]) -> bool:
    """Whether the wheel would get this call's message, if it is delayed."""
    producer = call.get("producer") or call.get("publisher")
    return isinstance(app.amqp, WheelAMQP) and is_eligible(app, call.get("connection"), producer)


def _split_arguments(function: Any, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments to pass by position, and those to pass by name because the function accepts no more.

    An app's class may override ``send_task(self, name, args=None, kwargs=None, **options)``.
    """
    if not 3 < len(args) <= len(_POSITIONS):  # every override has name, args, kwargs
        return args, {}
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return args, {}
    count = len(kinds) - kinds.count(inspect.Parameter.KEYWORD_ONLY) - kinds.count(inspect.Parameter.VAR_KEYWORD)
    return args[:count], dict(zip(_POSITIONS[count:], args[count:], strict=False))


REPORTS = "celery_wheel.worker.run_reports:RunReports"

#: Names, so that producers need not import the worker's modules; the setting ``wheel_rescue`` switches the first on.
STEPS = (
    "celery_wheel.producer.rescue:Rescue",
    REPORTS,
    "celery_wheel.worker.run_reports:DispatchTimes",
)


class Celery(WheelApp, celery.Celery):  # type: ignore[misc]  # celery carries no types
    """A drop-in replacement for ``celery.Celery`` that schedules delayed tasks by the wheel."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._wheel_module = calling_module(self)  # beside it is the default store
        _extend(self)


def install(app: App) -> App:
    """Schedule an app's delayed tasks by the wheel; returns the app. A second call changes nothing."""
    real: Any = getattr(app, "_get_current_object", lambda: app)()  # behind current_app's proxy
    if type(real) is celery.Celery:
        real.__class__ = Celery
    else:
        _mix(WheelApp, real)
    if "amqp" in vars(real):
        real.amqp = real.amqp  # by the setter
    _extend(real)
    return real  # type: ignore[no-any-return]


def _extend(app: Any) -> None:
    """Add the worker's steps, and ``self.request.wheel``.

    Celery makes the request of every task of every app of one class, and no app can name another. So that class gets a
    last resort for ``wheel`` and ``wheel_group``, in a process that has an app with the wheel.
    """
    app.steps["consumer"].update(STEPS)
    Context.__getattr__ = _request_attribute


def warn_of_another_scheduler(sender: Any = None, **_: Any) -> None:
    """Warn where beat runs without the wheel; child processes of the wheel's own beat send no sender."""
    app, ours = getattr(sender, "app", None), sys.modules.get("celery_wheel.beat")
    if not isinstance(app, WheelApp) or not Conf(app).enabled:
        return
    if ours is None or not isinstance(sender.scheduler, ours.WheelMixin):
        logger.warning(
            "this beat runs %s: delayed tasks of this app wait in the broker until a beat with the wheel runs; set "
            '%s = "wheel", or start: celery -A proj beat -S wheel',
            type(sender.scheduler).__name__,
            Conf(app).spelling("beat_scheduler"),
            extra={"action": "other_scheduler"},
        )


beat_init.connect(warn_of_another_scheduler)


def _request_attribute(request: Any, name: str) -> Any:
    """Return ``request.wheel``, or ``request.wheel_group`` of a task without a group; called for missing attributes.

    It is not an attribute of the class, because a retry drops headers with the name of one.
    """
    if name == GROUP:
        return (vars(request).get("headers") or {}).get(GROUP)  # protocol 1 keeps the headers apart
    if name != "wheel":
        raise AttributeError(f"{type(request).__name__!r} object has no attribute {name!r}")
    header = vars(request).get(OCCURRENCE)
    if header is None:
        return None
    from celery_wheel.worker import read_occurrence  # a producer does not need it

    return read_occurrence(header, request.retries)


def _restore(function: Any, args: tuple[Any, ...]) -> Any:
    return install(function(*args))


def _divert(amqp: Any) -> Any:
    if not isinstance(amqp, WheelAMQP):
        _mix(WheelAMQP, amqp)
        sender = vars(amqp).get("send_task_message")
        if sender is not None:  # the app was used before
            amqp.send_task_message = divert_sender(amqp.app, sender)
    return amqp


def _mix(mixin: type, thing: Any) -> None:
    """Set a thing's class to a subclass with the mixin first, unless it has the mixin already."""
    if not isinstance(thing, mixin):
        thing.__class__ = _mixed(mixin, thing.__class__)


@cache
def _mixed(mixin: Any, base: Any) -> Any:
    return type(base.__name__, (mixin, base), {"__module__": base.__module__, "_mixed_into": base})
