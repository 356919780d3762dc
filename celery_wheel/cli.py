"""``celery -A proj wheel …``: what the wheel holds, for people and, with ``--json``, for programs.

Everything is read from the store, so any process that reaches it can ask, also while no scheduler runs. What
only the holder knows (levels, edge) is its last snapshot, with its age.

Imported on every ``celery`` call: the heavy imports are inside the commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from celery.bin.base import CeleryCommand, handle_preload_options

if TYPE_CHECKING:
    from celery_wheel.control import Wheel


@click.group(name="wheel")
@click.pass_context
@handle_preload_options  # type: ignore[untyped-decorator]  # celery carries no types
def wheel(ctx: click.Context) -> None:
    """See what waits in the wheel."""


@wheel.command(cls=CeleryCommand)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """Show each shard's holder, hand, pending tasks and levels.

    Exit code: 0 when every shard has a holder that was heard of in the last 5 seconds, 3 when one has not.
    """
    from celery_wheel.show import report

    with _wheel(ctx) as wheel:
        text, code = report(wheel.status(), as_json=as_json)
    click.echo(text)
    ctx.exit(code)


@wheel.command(cls=CeleryCommand)
@click.argument("shards", type=int)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def reshard(ctx: click.Context, shards: int, yes: bool) -> None:
    """Give the store SHARDS shards, while no scheduler runs; what waits moves along.

    Tasks with one key keep their order. With fewer shards, the history of those that are no more is forgotten.
    """
    from celery_wheel.errors import WheelError
    from celery_wheel.service import reshard_of

    if not yes:
        click.confirm(f"All schedulers are stopped, and are to have wheel_shards = {shards} then?", abort=True)
    try:
        done = reshard_of(ctx.obj.app, shards)
    except WheelError as error:
        raise click.ClickException(str(error)) from error
    click.echo(
        f"{done.before} shards were there, {done.after} are now; {done.moved:,} pending tasks moved, "
        f"{done.forgotten:,} rows of history were forgotten; set wheel_shards = {done.after} everywhere"
    )


@contextmanager
def _wheel(ctx: click.Context) -> Iterator[Wheel]:
    from celery_wheel.control import Wheel
    from celery_wheel.errors import WheelError

    wheel = Wheel(ctx.obj.app)
    try:
        yield wheel
    except (WheelError, ImportError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        wheel.close()
