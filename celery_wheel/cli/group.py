"""The group ``celery wheel``, and the parts that its commands share: exit codes, errors, the app's wheel, Django."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click
from celery.bin.base import CeleryCommand, handle_preload_options
from kombu.exceptions import OperationalError

from celery_wheel.broker.errors import CHECK_BROKER
from celery_wheel.conf import Conf
from celery_wheel.errors import SettingError, WheelError, WheelUnavailable
from celery_wheel.values.format import format_count
from celery_wheel.values.mask import NO_MASK, Mask

if TYPE_CHECKING:
    from celery_wheel.control import Wheel


#: Exit codes beside click's own 0, 1 (an error) and 2 (usage).
NEEDS_ACTION, NO_ANSWER = 3, 4


class WheelGroup(click.Group):
    """Celery's own commands have its style of help."""

    command_class = CeleryCommand


@click.group(name="wheel", cls=WheelGroup)
@click.pass_context
@handle_preload_options  # type: ignore[untyped-decorator]  # celery carries no types
def wheel(ctx: click.Context) -> None:
    """Show and change the tasks that the wheel holds.

    Exit codes: 0 done; 1 an error, which stderr explains; 2 a wrong command line; 3 done, and the answer needs action;
    4 no scheduler answered in time, and the request was withdrawn.
    """


class _NoAnswer(click.ClickException):
    exit_code = NO_ANSWER


@contextmanager
def user_errors(mask: Mask = NO_MASK) -> Iterator[None]:
    """End the command with a sentence and an exit code, without a traceback, for an error that a user can cause."""
    try:
        yield
    except (WheelError, ImportError) as error:
        kind = _NoAnswer if isinstance(error, WheelUnavailable) else click.ClickException
        raise kind(_spelled(mask.text(str(error)))) from error
    except OperationalError as error:
        raise click.ClickException(_spelled(f"the broker does not answer ({error}); {CHECK_BROKER}")) from error


def _spelled(text: str) -> str:
    """Return an error with the names of settings as the command's app reads them."""
    app = getattr(click.get_current_context().obj, "app", None)
    return text if app is None else Conf(app).spelled(text)


@contextmanager
def open_wheel(ctx: click.Context, shard: int | None = None) -> Iterator[Wheel]:
    """Yield the app's wheel, and close it. A ``shard`` must be one of the store's."""
    from celery_wheel.control import Wheel

    wheel = Wheel(ctx.obj.app)
    try:
        with user_errors():
            mask = wheel.mask
        with user_errors(mask):
            if shard is not None and shard >= wheel.store.shards:
                count = wheel.store.shards
                text = f"must be from 0 to {count - 1}, since the store has {format_count(count, 'shard')}, got {shard}"
                raise click.BadParameter(text, ctx, param_hint="--shard")
            yield wheel
    finally:
        wheel.close()


def start_project() -> None:
    """Set Django up in a Django project, whose app gets the wheel then: Celery does so for workers and beat alone.

    Raises SettingError where Django does not start.
    """
    if not os.environ.get("DJANGO_SETTINGS_MODULE") or find_spec("django") is None:
        return
    import django
    from django.apps import apps
    from django.core.exceptions import ImproperlyConfigured

    if apps.ready:
        return
    try:
        django.setup()
    except (ImproperlyConfigured, ImportError) as error:
        raise SettingError(
            f"DJANGO_SETTINGS_MODULE must be settings that Django starts with, got {error}; `manage.py check` says more"
        ) from error
