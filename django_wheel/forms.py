"""The forms of the admin's actions, and times and durations in forms: a duration is a number with its unit.

A time is in the admin's time zone. When clocks change, a time that exists twice or not at all is refused.
"""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from celery_wheel.conf.limits import MAX_CONCURRENCY, MAX_RUNTIME_S, MAX_WEIGHT, PARTS
from celery_wheel.conf.setting import parse_rate
from celery_wheel.control import MAX_OVER_S
from celery_wheel.errors import ArgumentError
from celery_wheel.recurring.local import resolve
from celery_wheel.requests.arguments import group_of
from celery_wheel.values.format import to_datetime
from celery_wheel.values.text import END_OF_TIME_MS, MAX_TEXT
from django_wheel.formats import gate_label

#: Milliseconds of each unit; the largest first.
UNITS = (
    (604_800_000, _("weeks")),
    (86_400_000, _("days")),
    (3_600_000, _("hours")),
    (60_000, _("minutes")),
    (1_000, _("seconds")),
    (1, _("milliseconds")),
)


def moment_ms(text: str, zone: tzinfo) -> int:
    """Return a date and time as Unix milliseconds. Raises ValidationError, with the rule.

    Without an offset it is in ``zone``; a time that exists twice is the first of the two.
    """
    try:
        moment = parse_datetime(text.strip())
    except ValueError:
        moment = None
    if moment is None:
        raise ValidationError(
            _("Enter a date and time like 2026-11-21 08:30, or with an offset: 2026-11-21 08:30+01:00.")
        )
    if moment.tzinfo is None:
        found = resolve(moment, zone)
        if found.kind == "gap":
            raise ValidationError(_("This time does not exist: the clocks skip it."))
        moment = found.first
    at_ms = round(moment.timestamp() * 1_000)
    if not 0 <= at_ms < END_OF_TIME_MS:
        raise ValidationError(_("The time must be from 1970 to the end of 9998."))
    return at_ms


def moment_text(at_ms: int, zone: tzinfo) -> str:
    """Return the text of an instant that ``moment_ms`` reads; it has an offset where the time exists twice."""
    moment = to_datetime(at_ms)
    if moment is None:
        return str(at_ms)
    local = moment.astimezone(zone)
    is_twice = resolve(local.replace(tzinfo=None, fold=0), zone).kind == "fold"
    timespec = "milliseconds" if at_ms % 1_000 else "seconds"
    return (local if is_twice else local.replace(tzinfo=None)).isoformat(" ", timespec)


class DurationWidget(forms.MultiWidget):
    def __init__(self, attrs: Any = None) -> None:
        number = forms.TextInput(attrs={"inputmode": "numeric", "size": 8})
        choices = [(str(ms), label) for ms, label in UNITS]
        unit = forms.Select(attrs={"aria-label": _("Unit")}, choices=choices)
        super().__init__([number, unit], attrs)

    def id_for_label(self, id_: str) -> str:
        return f"{id_}_0"

    def decompress(self, value: Any) -> list[Any]:
        if not isinstance(value, int):
            return ["", "60000"]
        ms = next((ms for ms, _label in UNITS if value and value % ms == 0), 60_000)
        return [value // ms, str(ms)]


class DurationMsField(forms.MultiValueField):
    """A duration in milliseconds; None where the number is empty."""

    widget = DurationWidget

    def __init__(self, **options: Any) -> None:
        fields = (
            forms.IntegerField(required=False, min_value=0, max_value=END_OF_TIME_MS),
            forms.TypedChoiceField(coerce=int, choices=[(str(ms), label) for ms, label in UNITS], required=False),
        )
        super().__init__(fields=fields, require_all_fields=False, required=False, **options)

    def compress(self, data_list: Any) -> int | None:
        if not data_list or data_list[0] is None:
            return None
        return int(data_list[0]) * int(data_list[1] or 1)


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
    overlap = forms.TypedChoiceField(label=_("Overlap"), required=False, choices=_BACKFILL_OVERLAP, empty_value=None)
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


SCOPES = (
    ("queue", _("Tasks of a queue")),
    ("task", _("Tasks of a name")),
    ("group", _("Tasks of a group")),
    ("all", _("Everything")),
)
#: The required content of the field ``name``, by scope.
NAME_RULES = {
    "queue": _("Enter the name of the queue."),
    "task": _("Enter the name of the task."),
    "group": _("Enter the name of the group."),
}


def _name(help_text: Any = "", *, strip: bool = True) -> forms.CharField:
    widget = forms.TextInput(attrs={"size": 60, "list": "wheel-names"})
    options = {"required": False, "max_length": MAX_TEXT, "strip": strip, "help_text": help_text}
    return forms.CharField(label=_("Name"), widget=widget, **options)


class PauseForm(ReasonForm):
    verb, title = "pause", _("Pause")
    effect = _(
        "The scheduler dispatches none of these tasks until they are resumed. Tasks that fall due wait in order and "
        "can still be cancelled."
    )
    scope = forms.ChoiceField(label=_("Scope"), choices=SCOPES)
    name = _name(
        _(
            "Name of the queue, the task or the group; empty for everything. A task that is sent by a routing key "
            "without a queue goes by its routing key."
        )
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
        scope = self.cleaned_data["scope"]
        return {"everything": True} if scope == "all" else {scope: self.cleaned_data["name"]}

    @property
    def gate(self) -> str:
        return gate_label(self.cleaned_data["scope"], self.cleaned_data["name"])


class ResumeForm(PauseForm):
    verb, title = "resume", _("Resume")
    effect = _("Resuming ends a pause of the same queue, task or group, or of everything.")
    name = _name(strip=False)
    over = forms.IntegerField(
        label=_("Minutes for the backlog"),
        required=False,
        min_value=0,
        max_value=MAX_OVER_S // 60 - 1,
        help_text=_("The scheduler dispatches the backlog evenly over this time; at once if the field is empty."),
    )


class EraseForm(ReasonForm):
    reason = _reason(_("Reason"), _("The reason stays in the audit log. Do not name a person in it."))
    scope = forms.ChoiceField(
        label=_("Erase"),
        choices=(
            ("task_id", _("The task with an id")),
            ("key", _("All tasks with a key")),
            ("group", _("All tasks of a group")),
            ("schedule", _("A deleted schedule")),
        ),
    )
    name = forms.CharField(
        label=_("Name"), max_length=MAX_TEXT, strip=False, widget=forms.TextInput(attrs={"size": 60})
    )
    sure = forms.BooleanField(label=_("I understand that nothing can undo it."))
    field_order = ("scope", "name", "reason", "sure")


class LimitsForm(ReasonForm):
    """The own limits of a group. The verb ``clear`` ends them, so it needs none."""

    reason = _reason(_("Reason"), _("The reason is kept in the audit log and in the admin's log."))
    group = forms.CharField(
        label=_("Group"), max_length=MAX_TEXT, strip=False, widget=forms.TextInput(attrs={"size": 60})
    )
    concurrency = forms.IntegerField(
        label=_("Tasks in flight, at most"), required=False, min_value=1, max_value=MAX_CONCURRENCY
    )
    rate = forms.CharField(
        label=_("Rate"),
        required=False,
        max_length=40,
        help_text=_("Tasks in a second, a minute or an hour: 100/s, 100/m or 100/h."),
    )
    weight = forms.IntegerField(
        label=_("Weight"),
        required=False,
        min_value=1,
        max_value=MAX_WEIGHT,
        help_text=_("The group's share of a queue beside other groups that wait for it."),
    )
    max_runtime = DurationMsField(
        label=_("A run is over after"), help_text=_("A run counts as ended after this time, whatever is reported.")
    )
    field_order = ("group", "concurrency", "rate", "weight", "max_runtime", "reason")

    def clean_group(self) -> str:
        try:
            return group_of(self.cleaned_data["group"])
        except ArgumentError as error:
            raise ValidationError(str(error)) from None

    def clean_rate(self) -> str | None:
        rate: str = self.cleaned_data["rate"]
        try:
            if rate:
                parse_rate(rate)
        except ValueError:
            raise ValidationError(_("Enter a rate like 100/m, with /s, /m or /h.")) from None
        return rate or None

    def clean_max_runtime(self) -> int | None:
        duration_ms: int | None = self.cleaned_data["max_runtime"]
        if duration_ms is not None and not 1_000 <= duration_ms <= MAX_RUNTIME_S * 1_000:
            raise ValidationError(_("The time must be from 1 second to 30 days."))
        return duration_ms

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        if self.data.get("verb") != "clear" and not self.errors and not any(map(values.get, PARTS)):
            raise ValidationError(_("Enter at least one limit. To end the group's own limits, use Clear."))
        return values

    @property
    def limits(self) -> dict[str, Any]:
        """The limits as ``app.wheel.limits.set`` takes them."""
        values = {name: self.cleaned_data[name] for name in PARTS}
        runtime_ms = values["max_runtime"]
        return {**values, "max_runtime": None if runtime_ms is None else runtime_ms / 1_000}
