"""The group ``celery wheel``, and what its commands have in common: a wheel to ask, and errors in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from celery.bin.base import handle_preload_options

from celery_wheel.present import many

if TYPE_CHECKING:
    from celery_wheel.control import Wheel

#: Exit codes beside click's own 0, 1 (an error) and 2 (usage).
TO_ACT_UPON = 3
NOBODY_ANSWERED = 4


@click.group(name="wheel")
@click.pass_context
@handle_preload_options  # type: ignore[untyped-decorator]  # celery carries no types
def wheel(ctx: click.Context) -> None:
    """See what waits in the wheel, and say what is to become of it.

    Exit codes: 0 done; 1 an error, which is said; 2 the command line makes no sense; 3 the answer is one to act upon;
    4 no scheduler answered in time, and what was asked was withdrawn.
    """


@contextmanager
def said() -> Iterator[None]:
    """What a user can cause ends the command with a sentence and exit code 1, without a traceback."""
    from kombu.exceptions import OperationalError

    from celery_wheel.errors import WheelError

    try:
        yield
    except (WheelError, ImportError) as error:
        raise click.ClickException(str(error)) from error
    except OperationalError as error:
        raise click.ClickException(f"the broker does not answer ({error}); start it, or correct broker_url") from error


@contextmanager
def asking(ctx: click.Context, shard: int | None = None) -> Iterator[Wheel]:
    """The app's wheel, closed in the end; ``shard`` has to be one of its shards, if it is named."""
    from celery_wheel.control import Wheel

    wheel = Wheel(ctx.obj.app)
    try:
        with said():
            if shard is not None and shard >= wheel.store.shards:
                there = wheel.store.shards
                text = f"must be from 0 to {there - 1}, as the store has {many(there, 'shard')}, got {shard}"
                raise click.BadParameter(text, ctx, param_hint="--shard")
            yield wheel
    finally:
        wheel.close()


@contextmanager
def answered(ctx: click.Context) -> Iterator[None]:
    """Where no scheduler answers in time the command says so, and ends with an exit code of its own."""
    from celery_wheel.errors import WheelUnavailable

    try:
        yield
    except WheelUnavailable as error:
        click.echo(f"Error: {error}", err=True)
        ctx.exit(NOBODY_ANSWERED)
