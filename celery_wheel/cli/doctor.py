"""``celery wheel doctor``: check an installation, and name the remedy of each problem."""

from __future__ import annotations

import click

from celery_wheel.cli.group import NEEDS_ACTION, user_errors, wheel
from celery_wheel.cli.project import start_project
from celery_wheel.console import parameters as options
from celery_wheel.console.output import print_json, progress
from celery_wheel.values.format import format_count

SHOWN = {"ok": ("ok", "green"), "note": ("note", "cyan"), "warning": ("warning", "yellow"), "error": ("ERROR", "red")}


@wheel.command(short_help="Check this installation, and name each remedy.")
@options.as_json
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check settings, broker, store, clocks and schedulers, from this host, and name the remedy of each problem.

    Nothing is changed. Exit code: 0 when all is well, 3 when there are warnings, 1 when there are errors. A note is
    right for some installations, and does not count.
    """
    from celery_wheel.operations.doctor import CHECKS, Grade, examine

    found = []
    with user_errors(), progress("checking", len(CHECKS)) as done:
        start_project()
        for findings in examine(ctx.obj.app):
            found += findings
            done(1)
    errors, warnings = ([one.grade for one in found].count(grade) for grade in (Grade.ERROR, Grade.WARNING))
    code = 1 if errors else NEEDS_ACTION if warnings else 0
    if as_json:
        print_json({"code": code, "findings": [one.as_dict() for one in found]})
        ctx.exit(code)
    for one in found:
        word, colour = SHOWN[one.grade]
        click.echo(f"{click.style(f'{word:7}', fg=colour)}  {one.about:13} {one.text}")
        if one.remedy:
            click.echo(f"{'':24}→ {one.remedy}")
    counts = f"{format_count(errors, 'error')}, {format_count(warnings, 'warning')}"
    click.echo(f"{format_count(len(found), 'finding')}: {counts}")
    ctx.exit(code)
