"""``manage.py wheel_migrate_check``: has the store the tables that this version needs? For deployments."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from celery_wheel.errors import StoreUnused, WheelError
from celery_wheel.store.model import SCHEMA_VERSION
from django_wheel import asking
from django_wheel.project import project_wheel


class Command(BaseCommand):
    help = (
        "Say whether the wheel's store has the tables that this version of celery-wheel needs. Exit code: 0 when it "
        "has, 2 when migrations are to be run (which ones is said), 1 when the store cannot be asked."
    )

    def handle(self, **options: Any) -> None:
        try:
            store = asking.open_store(project_wheel().conf.app)
        except StoreUnused as unused:  # as before the first start of a scheduler, which a deployment has yet to do
            self.stdout.write(f"the tables are those of version {SCHEMA_VERSION}; {unused}")
            return
        except asking.NotMigrated as error:
            raise CommandError(f"{error}\n{error.hint}", returncode=2) from error
        except (WheelError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error
        store.close()
        self.stdout.write(f"{store.name} has the tables of version {SCHEMA_VERSION}; nothing is to be done")
