"""``celery wheel migrate``: the tables of an older version become those of this one."""

from __future__ import annotations

import click
from celery.bin.base import CeleryCommand

from celery_wheel.cli import options
from celery_wheel.cli.group import said, wheel
from celery_wheel.cli.output import progress, put_json


@wheel.command(cls=CeleryCommand, short_help="Bring the tables of the store to this version.")
@options.as_json
@click.pass_context
def migrate(ctx: click.Context, as_json: bool) -> None:
    """Bring the tables of wheel_store to this version, in place, while no scheduler runs. Nothing is lost.

    A store in Django's database is migrated by `python manage.py migrate`. Exit code: 0 also when nothing was to be
    done; 1 when it could not be, and nothing was changed then.
    """
    from celery_wheel.conf import Conf

    with said():
        from celery_wheel.store import migrate_store

        with progress("migrating"):
            versions = migrate_store(Conf(ctx.obj.app).store)
    if as_json:
        put_json({"versions": versions})
    elif versions:
        click.echo(f"the tables have version {versions[-1]} now; start the schedulers")
    else:
        click.echo("the tables have this version already")
