"""A router of a project with several databases: an app that it does not list is migrated in one of them only."""

from typing import Any


class Keep:
    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "primary"

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return app_label != "django_wheel"
