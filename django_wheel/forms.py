"""The forms of the admin's actions: a reason, a new time, the tasks to pause or resume, and the instants to backfill.

A time is in the admin's time zone. When clocks change, a time that exists twice or not at all is refused.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from celery_wheel.control import MAX_OVER_S
from celery_wheel.values.text import END_OF_TIME_MS, MAX_TEXT
from django_wheel.fields_of_time import moment_ms
from django_wheel.formats import gate_label, to_datetime

MAX_REASON = 500


def _reason(label: Any, help_text: Any, size: int = 60) -> forms.CharField:
    widget = forms.TextInput(attrs={"size": size})
    return forms.CharField(label=label, required=False, max_length=MAX_REASON, widget=widget, help_text=help_text)


class ReasonForm(forms.Form):
    reason = _reason(_("Reason"), _("The reason is kept with each task and in the admin's log."))


class RescheduleForm(ReasonForm):
    eta = forms.DateTimeField(
        label=_("New time"),
        widget=forms.DateTimeInput(attrs={"type": "datetime-local", "step": 1}, format="%Y-%m-%dT%H:%M:%S"),
    )
    field_order = ("eta", "reason")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        zone = timezone.get_current_timezone_name()
        self.fields["eta"].help_text = gettext("Time zone: %(zone)s") % {"zone": zone}

    def clean_eta(self) -> datetime:
        eta: datetime = self.cleaned_data["eta"]
        if timezone.is_naive(eta):  # where USE_TZ is False
            eta = timezone.make_aware(eta)
        end = to_datetime(END_OF_TIME_MS)
        if end is not None and eta >= end:
            raise forms.ValidationError(_("The time must be before the year 9999."))
        if eta <= timezone.now().astimezone(eta.tzinfo):
            raise forms.ValidationError(_("The time is in the past. To dispatch a task at once, use Run now."))
        return eta


class ScheduleReasonForm(ReasonForm):
    reason = _reason(_("Reason"), _("The reason is kept with the schedule's revisions and in the admin's log."), 50)


class NoteForm(ReasonForm):
    reason = _reason(
        _("Note"), _("The note is shown with the schedule until it is resumed, and kept with its revisions.")
    )


class RevisionForm(ScheduleReasonForm):
    revision = forms.IntegerField(min_value=1, max_value=2**31 - 1, widget=forms.HiddenInput)


_BACKFILL_OVERLAP = (
    ("", _("as the policy of the schedule")),
    ("allow", _("all instants run at once")),
    ("queue_all", _("each instant runs when the run before it is over")),
    ("queue_one", _("the first instant runs, and then the last")),
    ("skip", _("the first instant runs, unless a run is going on")),
    ("cancel_running", _("the last instant runs, in place of the run that is going on")),
)


class BackfillForm(ScheduleReasonForm):
    begin = forms.CharField(label=_("From"), widget=forms.TextInput(attrs={"placeholder": "2026-11-21 08:30"}))
    end = forms.CharField(label=_("Until"), widget=forms.TextInput(attrs={"placeholder": "2026-11-21 08:30"}))
    overlap = forms.ChoiceField(label=_("Overlap"), required=False, choices=_BACKFILL_OVERLAP)
    field_order = ("begin", "end", "overlap", "reason")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        zone = timezone.get_current_timezone()
        text = gettext("Date and time in %(zone)s, or with an offset like 2026-11-21 08:30+01:00.")
        self.fields["begin"].help_text = text % {"zone": zone}

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        for name, field in (("from_ms", "begin"), ("upto_ms", "end")):
            if values.get(field):
                try:
                    values[name] = moment_ms(values[field], timezone.get_current_timezone())
                except forms.ValidationError as error:
                    self.add_error(field, error)
        if "from_ms" in values and "upto_ms" in values and values["from_ms"] > values["upto_ms"]:
            self.add_error("end", _("The end must not be before the beginning."))
        return values


SCOPES = (("queue", _("Tasks of a queue")), ("task", _("Tasks of a name")), ("all", _("Everything")))
#: The required content of the field ``name``, by scope.
NAME_RULES = {"queue": _("Enter the name of the queue."), "task": _("Enter the name of the task.")}


class PauseForm(ReasonForm):
    scope = forms.ChoiceField(label=_("Scope"), choices=SCOPES)
    name = forms.CharField(
        label=_("Name"),
        required=False,
        max_length=MAX_TEXT,
        widget=forms.TextInput(attrs={"size": 60, "list": "wheel-names"}),
        help_text=_(
            "Name of the queue or the task; empty for everything. A task that is sent by a routing key without a queue "
            "goes by its routing key."
        ),
    )
    field_order = ("scope", "name", "over", "reason")

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        scope, name = values.get("scope"), values.get("name")
        if scope == "all" and name:
            self.add_error("name", _("Leave the name empty for everything."))
        if scope in NAME_RULES and name == "":
            self.add_error("name", NAME_RULES[scope])
        return values

    @property
    def which(self) -> dict[str, Any]:
        """The arguments of ``Wheel.pause`` and ``Wheel.resume``."""
        scope = self.cleaned_data["scope"]
        return {"everything": True} if scope == "all" else {scope: self.cleaned_data["name"]}

    @property
    def label(self) -> str:
        return gate_label(self.cleaned_data["scope"], self.cleaned_data["name"])


class ResumeForm(PauseForm):
    name = forms.CharField(
        label=_("Name"),
        required=False,
        max_length=MAX_TEXT,
        strip=False,
        widget=forms.TextInput(attrs={"size": 60, "list": "wheel-names"}),
    )
    over = forms.IntegerField(
        label=_("Minutes for the backlog"),
        required=False,
        min_value=0,
        max_value=MAX_OVER_S // 60 - 1,
        help_text=_("The scheduler dispatches the backlog evenly over this time; at once if the field is empty."),
    )
