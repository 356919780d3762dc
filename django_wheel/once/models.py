"""The table of ``once``: a marker of each task that is committed. A file of its own, where Django looks."""

from __future__ import annotations

from typing import Any

from django.db import models

from celery_wheel.worker.once import NAME


class Marker(models.Model):
    id: Any = models.CharField(primary_key=True, max_length=64)
    until_ms: Any = models.BigIntegerField(db_index=True)
    result: Any = models.BinaryField(null=True)

    class Meta:
        db_table = NAME

    def __str__(self) -> str:
        return str(self.id)
