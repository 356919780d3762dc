"""``celery wheel pause`` and ``resume``: nothing leaves for a queue, of a task, or at all, until it is undone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand

from celery_wheel.cli import options, verdicts
from celery_wheel.cli.group import TO_ACT_UPON, answered, asking, wheel
from celery_wheel.cli.output import Column, Lines, put_json
from celery_wheel.present import duration, seen, utc

if TYPE_CHECKING:
    from celery_wheel.control import Wheel
    from celery_wheel.requests.arguments import Which
    from celery_wheel.store.model import Gate

_names = options.all_of(
    click.option("--queue", help="What goes to this queue (or has this routing key, where no queue is named)."),
    click.option("--task", help="Tasks of this name."),
)


@wheel.command(cls=CeleryCommand, short_help="Let nothing leave for a queue, of a task, or at all.")
@_names
@click.option("--all", "everything", is_flag=True, help="Everything.")
@options.asking
@click.pass_context
def pause(
    ctx: click.Context,
    queue: str | None,
    task: str | None,
    everything: bool,
    reason: str,
    timeout: float,
    as_json: bool,
) -> None:
    """Let nothing leave for a queue, or of a task, or nothing at all; without options show what is paused.

    It holds until `resume`, also over a restart. What is due meanwhile waits, in order, and holds up nothing else; it
    can be cancelled and moved as ever. Pausing what is paused replaces the reason and the actor; one resume undoes
    both. Exit code: 0 when it is done; 4 when no scheduler answered in time: then it was withdrawn.
    """
    with asking(ctx) as wheel, answered(ctx):
        if queue is not None or task is not None or everything:
            wheel.pause(**_which(queue, task, everything, reason, timeout))
            if not everything and not wheel.forecast(queue=queue, task=task):
                click.echo(f"nothing waits for {seen(queue or task)} at present: is that its name?", err=True)
        _show(wheel, as_json)


@wheel.command(cls=CeleryCommand, short_help="Undo a pause.")
@_names
@click.option("--all", "everything", is_flag=True, help="What was paused with --all.")
@click.option("--over", type=options.Length(), help="Let what has gathered leave evenly in this time: 600, 10m, 1h.")
@options.asking
@click.pass_context
def resume(
    ctx: click.Context,
    queue: str | None,
    task: str | None,
    everything: bool,
    over: float | None,
    reason: str,
    timeout: float,
    as_json: bool,
) -> None:
    """Undo `pause`, of the same queue, task, or of everything; show what is still paused.

    Exit code: 0 when it is done; 3 when it was not paused; 4 when no scheduler answered in time: then it was
    withdrawn.
    """
    which = _which(queue, task, everything, reason, timeout)
    with asking(ctx) as wheel, answered(ctx):
        try:
            was_paused = wheel.resume(**which, over=over)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--over") from error
        if was_paused is False:
            click.echo("that was not paused", err=True)
        _show(wheel, as_json)
    ctx.exit(TO_ACT_UPON if was_paused is False else 0)


def _which(queue: str | None, task: str | None, everything: bool, reason: str, timeout: float) -> Which:
    if [queue is not None, task is not None, everything].count(True) != 1:
        raise click.UsageError("give one of --queue, --task and --all")
    which: Which = {"reason": reason, "timeout": timeout, "actor": verdicts.whoever()}
    if queue is not None:
        which["queue"] = queue
    if task is not None:
        which["task"] = task
    return which


def _show(wheel: Wheel, as_json: bool) -> None:
    from celery_wheel.control import now_ms

    found, at_ms = wheel.gates(), now_ms()
    if as_json:
        put_json({"gates": [_as_dict(one) for one in found]})
        return
    columns: list[Column[Gate]] = [
        Column("what", lambda one: one.what),
        Column("state", lambda one: one.state),
        Column("for", lambda one: duration(max(0, at_ms - one.at_ms)), "right"),
        Column("since", lambda one: utc(one.at_ms), whole=True),
        Column("evenly in", lambda one: duration(one.per_ms) if one.per_ms else ""),
        Column("by", lambda one: one.actor, spare=True),
        Column("reason", lambda one: one.reason, cut=200),
    ]
    if found:
        Lines(columns).print(found)
    else:
        click.echo("nothing is paused")


def _as_dict(one: Gate) -> dict[str, Any]:
    return {
        "scope": one.scope,
        "name": one.name,
        "state": one.state,
        "per_ms": one.per_ms,
        "reason": one.reason,
        "actor": one.actor,
        "at_ms": one.at_ms,
    }
