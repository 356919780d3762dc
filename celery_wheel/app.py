"""The app: ``celery_wheel.Celery`` instead of ``celery.Celery``, or ``install(app)`` where the app is made elsewhere.

::

    apply_async · retry · canvas · beat · celery call
                      │
                  send_task ── no delay, wheel=False, past, too near, other broker ──► Celery, untouched
                      │
              countdown or eta ──► one instant, as a HeldEta ──► Celery's send_task ──► interception

1. Only calls with a countdown or an eta are touched, and those that ask to be transactional. Whatever stays with
   Celery is handed on as it came: a past eta runs at once, with its eta, as ever.
2. The id of a task that waits is a UUIDv7, unless the caller chose one.
3. ``wheel=`` is taken out here, from wherever a call gets its options: apply_async, signatures, retry, beat entries.
4. ``install`` gives the app a subclass of its own class. So it also works on an app that was used before, twice is
   once, and the app remains what it is when it is pickled for another process. A ``send_task`` of the project's own
   class gets what the caller gave, as it was given, but for a delay that the wheel takes: that is an instant there.
5. The app's workers have a step more, which does nothing unless ``wheel_rescue`` is set (``celery_wheel.rescue``).
   Where it is set, what ``wheel=False`` leaves to Celery is marked, or a worker would rescue it.

Not here: ``task_always_eager``, which never sends, messages that are published past ``send_task``, and an ``amqp`` or a
sender that was replaced by something else: what is sent through those is Celery's.
"""

from __future__ import annotations

import inspect
from functools import cache
from itertools import zip_longest
from typing import Any, TypeVar

import celery
from celery.app.amqp import AMQP
from kombu.utils.objects import cached_property

from celery_wheel.broker.envelope import NATIVE
from celery_wheel.conf import Conf
from celery_wheel.errors import SettingError
from celery_wheel.eta import due, microseconds
from celery_wheel.ids import uuid7
from celery_wheel.interception import HeldEta, WheelAMQP, diverting, hold
from celery_wheel.options import CallOptions, parse
from celery_wheel.reach import reaches
from celery_wheel.transaction import inbox_of, wanted

App = TypeVar("App")

#: What a call of Celery's ``send_task`` may give by position.
_POSITIONS = tuple(inspect.signature(celery.Celery.send_task).parameters)[1:-1]


class WheelApp:
    """Mixed into an app's class: ``send_task`` marks what is to wait, ``amqp`` diverts it."""

    @cached_property
    def amqp(self) -> Any:
        return _divert(super().amqp)  # Celery's, also cached

    @amqp.setter  # type: ignore[no-redef]  # mypy knows setters of property alone
    def amqp(self, amqp: Any) -> Any:
        return _divert(amqp) if isinstance(amqp, AMQP) else amqp

    @property
    def wheel(self) -> Any:
        """What waits, and what is to become of it: a ``celery_wheel.control.Wheel``."""
        from celery_wheel.control import wheel_of  # with the store, which a producer does not need

        return wheel_of(self)

    def send_task(self, *given: Any, wheel: Any = None, **options: Any) -> Any:
        """As Celery's, by position and by name; ``wheel`` is described in ``celery_wheel.options``."""
        asked = parse(wheel)
        call = {**dict(zip(_POSITIONS, given, strict=False)), **options}
        if asked.native and _is_delayed(call) and Conf(self).rescue:
            # A worker would else take it for the message of a producer that knows no wheel.
            options["headers"] = {**(options.get("headers") or {}), NATIVE: True}
        elif not asked.native and (_is_delayed(call) or asked.transactional):
            held = self._held(call, asked)
            if held is not None:
                changes = {"eta": held, "task_id": call.get("task_id") or uuid7()}
                if "countdown" in call:
                    changes["countdown"] = None
                given = tuple(changes.pop(name, value) for name, value in zip_longest(_POSITIONS[: len(given)], given))
                options.update(changes)
        send: Any = super().send_task  # type: ignore[misc]
        given, named = _as_taken(send, given)
        return send(*given, **named, **options)

    def _held(self, call: dict[str, Any], asked: CallOptions) -> HeldEta | None:
        """The eta of a call that is to wait in the wheel; None if it is Celery's own affair."""
        app: Any = self
        conf = Conf(app)
        now = app.now()
        now_us = microseconds(now)
        countdown, eta = call.get("countdown"), call.get("eta")
        diverts = conf.enabled and _diverts(app, call)
        if asked.transactional or (conf.enabled and wanted(app, asked.transactional)):
            inbox_of(app)
            if not diverts:
                raise SettingError(
                    "wheel_transactional needs wheel_enabled = True, a transport that the wheel serves, and the app's "
                    "own broker; nothing was sent; with wheel={'transactional': False} it would be sent without regard "
                    "to the transaction"
                )
            # Also what is due by now: at once would be before the commit.
            return hold(due(app, now, countdown, eta or now), now_us // 1000, asked)
        if not diverts:
            return None
        at = due(app, now, countdown, eta)
        if at.at_us <= now_us or at.at_us < now_us + conf.min_delay_ms * 1000:
            return None
        return hold(at, now_us // 1000, asked)

    def __reduce__(self) -> Any:
        reduced: Any = super().__reduce__()
        base = vars(type(self)).get("_mixed_into")
        if base is None:
            return reduced
        # A class that install made cannot be found by name in another process; the one below it can.
        function, (_, *args) = reduced
        return _restore, (function, (base, *args))


def _is_delayed(call: dict[str, Any]) -> bool:
    return bool(call.get("countdown") or call.get("eta"))


def _diverts(app: Any, call: dict[str, Any]) -> bool:
    """Whether the wheel would get this call's message, if it is to wait."""
    producer = call.get("producer") or call.get("publisher")
    return isinstance(app.amqp, WheelAMQP) and reaches(app, call.get("connection"), producer)


def _as_taken(function: Any, given: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments to pass by position, and those to pass by name where it takes no more.

    An app's class may well override ``send_task(self, name, args=None, kwargs=None, **options)``.
    """
    if not 3 < len(given) <= len(_POSITIONS):  # name, args, kwargs: every override has those
        return given, {}
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return given, {}
    room = len(kinds) - kinds.count(inspect.Parameter.KEYWORD_ONLY) - kinds.count(inspect.Parameter.VAR_KEYWORD)
    return given[:room], dict(zip(_POSITIONS[room:], given[room:], strict=False))


#: By name, so that producers need not load what workers need; whether it does anything, the setting says.
RESCUE = "celery_wheel.rescue:Rescue"


class Celery(WheelApp, celery.Celery):  # type: ignore[misc]  # celery carries no types
    """A drop-in for ``celery.Celery`` whose delayed tasks wait in the wheel."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.steps["consumer"].add(RESCUE)


def install(app: App) -> App:
    """Make an app's delayed tasks wait in the wheel; returns the app. Installing twice is installing once."""
    real: Any = getattr(app, "_get_current_object", lambda: app)()  # behind current_app's proxy
    if type(real) is celery.Celery:
        real.__class__ = Celery
    else:
        _mix(WheelApp, real)
    if "amqp" in vars(real):
        real.amqp = real.amqp  # by the setter
    real.steps["consumer"].add(RESCUE)
    return real  # type: ignore[no-any-return]


def _restore(function: Any, args: tuple[Any, ...]) -> Any:
    return install(function(*args))


def _divert(amqp: Any) -> Any:
    if not isinstance(amqp, WheelAMQP):
        _mix(WheelAMQP, amqp)
        sender = vars(amqp).get("send_task_message")
        if sender is not None:  # made before
            amqp.send_task_message = diverting(amqp.app, sender)
    return amqp


def _mix(mixin: type, thing: Any) -> Any:
    """Give a thing a subclass of its own class, with the mixin before it; once."""
    if not isinstance(thing, mixin):
        thing.__class__ = _mixed(mixin, thing.__class__)
    return thing


@cache
def _mixed(mixin: Any, base: Any) -> Any:
    return type(base.__name__, (mixin, base), {"__module__": base.__module__, "_mixed_into": base})
