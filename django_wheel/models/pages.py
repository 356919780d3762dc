"""The pages of the admin: models without a table of their own. ``Wheel`` carries the four permissions."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from django_wheel.models.rows import AuditRow, BatchRow, OutcomeRow, ScheduleRow, ShardRow, TallyRow, TimerRow

#: Django keeps these names in a table, as the project's language has them when it migrates.
PERMISSIONS = [
    ("view_wheel", "Can view the wheel"),
    ("view_payload", "Can view arguments, headers and bodies"),
    ("operate_wheel", "Can operate the wheel"),
    ("manage_schedules", "Can manage recurring schedules"),
]


class Wheel(ShardRow, permissions=PERMISSIONS, verbose_name=_("wheel"), verbose_name_plural=_("wheel")):
    """The page of the wheel."""


class Pending(TimerRow, verbose_name=_("pending task"), verbose_name_plural=_("pending tasks")):
    """The page of pending tasks."""


class Schedule(ScheduleRow, verbose_name=_("schedule"), verbose_name_plural=_("schedules")):
    """The page of recurring schedules."""


class History(TimerRow, verbose_name_plural=_("history")):
    """The page of dispatched tasks."""


class Rejected(OutcomeRow, verbose_name_plural=_("rejected tasks")):
    """The page of rejected tasks, and of the other outcomes."""


class Lateness(BatchRow, verbose_name_plural=_("lateness")):
    """The page of the job ``lateness``."""


class Forecast(TallyRow, verbose_name_plural=_("forecast from archive")):
    """The page of the job ``forecast``."""


class Audit(AuditRow, verbose_name_plural=_("audit log")):
    """The page of the audit log."""


class Batch(BatchRow, verbose_name=_("batch"), verbose_name_plural=_("batches")):
    """The page of batches: the settlements."""


class Shard(ShardRow, verbose_name=_("shard"), verbose_name_plural=_("shards")):
    """The page of shards."""
