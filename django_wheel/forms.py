"""What people are asked before something is done: why, at what time, and what is to be paused or resumed.

A time is one of the admin's time zone; one that comes twice there, or never, when clocks are changed, is refused.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.utils import timezone

from celery_wheel.control import MAX_OVER_S
from celery_wheel.store.text import END_OF_TIME_MS, MAX_TEXT
from django_wheel.present import when

MAX_REASON = 500


class Why(forms.Form):
    reason = forms.CharField(
        required=False,
        max_length=MAX_REASON,
        widget=forms.TextInput(attrs={"size": 60}),
        help_text="For those who look at it later.",
    )


class When(Why):
    eta = forms.DateTimeField(
        label="New time",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local", "step": 1}, format="%Y-%m-%dT%H:%M:%S"),
    )
    field_order = ("eta", "reason")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["eta"].help_text = f"In the time zone {timezone.get_current_timezone_name()}."

    def clean_eta(self) -> datetime:
        eta: datetime = self.cleaned_data["eta"]
        if timezone.is_naive(eta):  # where USE_TZ is False
            eta = timezone.make_aware(eta)
        end = when(END_OF_TIME_MS)
        if end is not None and eta >= end:
            raise forms.ValidationError("Must be before the year 9999.")
        if eta <= timezone.now().astimezone(eta.tzinfo):
            raise forms.ValidationError("Is over already; to let a task leave at once there is Run now.")
        return eta


SCOPES = (("queue", "What goes to this queue"), ("task", "Tasks of this name"), ("all", "Everything"))


class Pause(Why):
    scope = forms.ChoiceField(label="What", choices=SCOPES)
    name = forms.CharField(
        required=False,
        max_length=MAX_TEXT,
        widget=forms.TextInput(attrs={"size": 60, "list": "wheel-names"}),
        help_text="Of the queue (its routing key, where no queue is named) or the task; empty for everything.",
    )
    field_order = ("scope", "name", "over", "reason")

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = super().clean() or self.cleaned_data
        scope, name = given.get("scope"), given.get("name")
        if scope == "all" and name:
            self.add_error("name", "Must be empty for everything.")
        if scope in ("queue", "task") and name == "":
            self.add_error("name", f"Must be the {scope}'s name.")
        return given

    @property
    def which(self) -> dict[str, str]:
        """As ``Wheel.pause`` takes it."""
        scope = self.cleaned_data["scope"]
        return {} if scope == "all" else {scope: self.cleaned_data["name"]}

    @property
    def what(self) -> str:
        return " ".join(part for scope, name in self.which.items() for part in (scope, name)) or "everything"


class Resume(Pause):
    name = forms.CharField(
        required=False,
        max_length=MAX_TEXT,
        strip=False,
        widget=forms.TextInput(attrs={"size": 60, "list": "wheel-names"}),
    )
    over = forms.IntegerField(
        label="Over so many minutes",
        required=False,
        min_value=0,
        max_value=MAX_OVER_S // 60 - 1,
        help_text="What has gathered leaves evenly in this time; at once if it is empty.",
    )
