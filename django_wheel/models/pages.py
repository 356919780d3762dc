"""The pages of the admin: models without a table of their own. ``Wheel`` carries the two permissions."""

from __future__ import annotations

from typing import ClassVar

from django.utils.translation import gettext_lazy as _

from django_wheel.models.rows import BatchRow, OutcomeRow, ShardRow, TallyRow, TimerRow


class Wheel(ShardRow):
    """The page of the wheel."""

    class Meta:
        proxy = True
        default_permissions = ()
        # Django keeps these names in a table, as the project's language has them when it migrates.
        permissions: ClassVar = [
            ("view_wheel", "Can view the wheel"),
            ("operate_wheel", "Can operate the wheel"),
        ]
        verbose_name = verbose_name_plural = _("wheel")


class Pending(TimerRow):
    """The page of pending tasks."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("pending task")
        verbose_name_plural = _("pending tasks")


class History(TimerRow):
    """The page of dispatched tasks."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name_plural = _("history")


class Rejected(OutcomeRow):
    """The page of rejected tasks, and of the other outcomes."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name_plural = _("rejected tasks")


class Lateness(BatchRow):
    """The page of the job ``lateness``."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name_plural = _("lateness")


class Forecast(TallyRow):
    """The page of the job ``forecast``."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name_plural = _("forecast from archive")


class Batch(BatchRow):
    """The page of batches: the settlements."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("batch")
        verbose_name_plural = _("batches")


class Shard(ShardRow):
    """The page of shards."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("shard")
        verbose_name_plural = _("shards")
