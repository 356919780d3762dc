"""``celery wheel doctor``: what is not as it should be, and what to do about it."""

from __future__ import annotations

import click
from celery.bin.base import CeleryCommand

from celery_wheel.cli import options
from celery_wheel.cli.group import TO_ACT_UPON, said, wheel
from celery_wheel.cli.output import progress, put_json
from celery_wheel.cli.starting import start_project
from celery_wheel.present import many

SHOWN = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "error": ("ERROR", "red")}


@wheel.command(cls=CeleryCommand, short_help="Look for what is wrong, and say what to do.")
@options.as_json
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Look at settings, broker, store, clocks and schedulers, from this host; say what to do about what is wrong.

    Nothing is changed. Exit code: 0 when all is well, 3 when there are warnings, 1 when there are errors.
    """
    from celery_wheel.doctor import CHECKS, Grade, examine

    found = []
    with said(), progress("examining", len(CHECKS)) as done:
        start_project()
        for findings in examine(ctx.obj.app):
            found += findings
            done(1)
    grades = {one.grade for one in found}
    code = 1 if Grade.ERROR in grades else TO_ACT_UPON if Grade.WARNING in grades else 0
    if as_json:
        put_json({"code": code, "findings": [one.as_dict() for one in found]})
        ctx.exit(code)
    for one in found:
        word, colour = SHOWN[one.grade]
        click.echo(f"{click.style(f'{word:7}', fg=colour)}  {one.about:13} {one.text}")
        if one.remedy:
            click.echo(f"{'':24}→ {one.remedy}")
    errors, warnings = ([one.grade for one in found].count(grade) for grade in (Grade.ERROR, Grade.WARNING))
    click.echo(f"{len(found)} things looked at: {many(errors, 'error')}, {many(warnings, 'warning')}")
    ctx.exit(code)
