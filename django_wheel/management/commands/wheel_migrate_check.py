"""``manage.py wheel_migrate_check``: check before a deployment that the store has the tables of this version.

A file of its own: Django finds a command by its name.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from celery_wheel.errors import StoreUnused, WheelError
from celery_wheel.store.model import SCHEMA_VERSION
from django_wheel.database import NotMigrated, open_store
from django_wheel.project import project_wheel


class Command(BaseCommand):
    help = (
        "Check that the wheel's store has the tables that this version of celery-wheel needs. Exit code: 0 if it has, "
        "or if its first scheduler makes them; 2 if migrations are missing (the command to run is printed); 1 if the "
        "store cannot be read."
    )

    def handle(self, **options: Any) -> None:
        try:
            store = open_store(project_wheel().conf.app)
        except StoreUnused as unused:  # before the first start of a scheduler, which comes after the deployment
            self.stdout.write(f"no migration is missing; {unused}")
            return
        except NotMigrated as error:
            raise CommandError(f"{error}\n{error.hint}", returncode=2) from error
        except (WheelError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error
        store.close()
        self.stdout.write(f"{store.name} has the tables of version {SCHEMA_VERSION}; no migration is missing")
