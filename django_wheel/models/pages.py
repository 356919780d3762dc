"""The pages of the admin: models without a table of their own. One carries the two permissions."""

from __future__ import annotations

from typing import ClassVar

from django_wheel.models.holders import Shard
from django_wheel.models.log import Batch, Outcome, Tally, Timer


class Wheel(Shard):
    """The wheel page."""

    class Meta:
        proxy = True
        default_permissions = ()
        permissions: ClassVar = [
            ("view_wheel", "Can see the wheel and what waits in it"),
            ("operate_wheel", "Can act on what waits in the wheel"),
        ]
        verbose_name = verbose_name_plural = "wheel"


class Pending(Timer):
    """The page of what waits."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = "pending task"


class History(Timer):
    """The page of what left."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name_plural = "history"


class Rejected(Outcome):
    """The page of what was set aside."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name_plural = "rejected"


class Lateness(Batch):
    """The page of what the job ``lateness`` left."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name_plural = "lateness"


class Forecast(Tally):
    """The page of what the job ``forecast`` left."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name_plural = "forecast from archive"
