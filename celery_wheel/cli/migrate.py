"""``celery wheel migrate``: bring the tables of an older version to this one."""

from __future__ import annotations

import click

from celery_wheel.cli.group import user_errors, wheel
from celery_wheel.console import parameters as options
from celery_wheel.console.output import print_json, progress


@wheel.command(short_help="Bring the tables of the store to this version.")
@options.as_json
@click.pass_context
def migrate(ctx: click.Context, as_json: bool) -> None:
    """Bring the tables of wheel_store to this version, in place, while no scheduler runs. Nothing is lost.

    A store in Django's database is migrated by `python manage.py migrate`. Exit code: 0 also when the tables have this
    version already; 1 when they could not be migrated, and nothing was changed.
    """
    from celery_wheel.conf import Conf
    from celery_wheel.store import migrate_store

    with user_errors(), progress("migrating"):
        versions = migrate_store(Conf(ctx.obj.app).store)
    if as_json:
        print_json({"versions": versions})
    elif versions:
        click.echo(f"the tables have version {versions[-1]} now; start the schedulers")
    else:
        click.echo("the tables have this version already")
