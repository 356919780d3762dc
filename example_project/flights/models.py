"""Scheduled reminders and their executions, in tables of their own so that each can be checked against the other."""

from typing import ClassVar

from django.db import models


class Replay(models.Model):
    """One run through a day in compressed time."""

    date = models.DateField()
    speed = models.FloatField(help_text="seconds of the day in one second of the replay")
    started_at_ms = models.BigIntegerField()

    def __str__(self) -> str:
        return f"{self.date} at {self.speed:g} times its speed"


class Reminder(models.Model):
    """A reminder for a passenger before this flight leaves."""

    replay = models.ForeignKey(Replay, models.CASCADE)
    task_id = models.CharField(max_length=36, unique=True)
    flight = models.CharField(max_length=24)
    departs_at_ms = models.BigIntegerField(help_text="real departure, in 2013")
    due_at_ms = models.BigIntegerField(help_text="in compressed time: the eta of the task")

    class Meta:
        indexes: ClassVar = [models.Index(fields=["replay", "due_at_ms"])]

    def __str__(self) -> str:
        return self.flight


class Execution(models.Model):
    """A run of a task. A task that runs twice has two rows."""

    task_id = models.CharField(max_length=36, db_index=True)
    executed_at_ms = models.BigIntegerField()

    def __str__(self) -> str:
        return self.task_id


class Order(models.Model):
    """A ticket for a flight, with a time limit for its payment."""

    class State(models.TextChoices):
        OPEN = "open"
        PAID = "paid"
        CANCELLED = "cancelled"

    flight = models.CharField(max_length=24)
    state = models.CharField(max_length=9, choices=State, default=State.OPEN)

    def __str__(self) -> str:
        return f"{self.flight}, {self.state}"


class Notice(models.Model):
    """A notice to a passenger of an airline, about a storm."""

    airline = models.CharField(max_length=2)
    sent_at_ms = models.BigIntegerField(db_index=True)
    ran_at_ms = models.BigIntegerField(null=True)

    def __str__(self) -> str:
        return f"{self.airline} {self.pk}"
