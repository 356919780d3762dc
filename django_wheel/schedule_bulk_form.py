"""The form that changes several schedules at once: each field that is left empty leaves the schedules as they are.

::

    fields ──► changes: arguments of ``app.wheel.schedules.update`` ──► patch ──► a definition with it is read

So an error of a value stands beside its field before anything is requested. The holder decides whether a schedule can
take the values, since its definition may be unreadable, and answers for each name.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from celery_wheel.errors import RecurrenceError
from celery_wheel.recurring.definition import patched, to_text
from celery_wheel.requests.schedules.definitions import in_arguments, patch_of
from django_wheel.fields_of_time import DurationMsField
from django_wheel.forms import ScheduleReasonForm
from django_wheel.schedule_form import (
    CATCH_UP_CHOICES,
    FOLD_CHOICES,
    GAP_CHOICES,
    JITTER_BY_CHOICES,
    OVERLAP_CHOICES,
    ScheduleForm,
    labelled,
)

#: A definition without any of the values that the form changes.
_EXAMPLE = '{"recurrence": {"kind": "recurrence", "spec": {"kind": "crontab"}}, "task": "example"}'

_DURATIONS = ("catch_up_window", "max_runtime", "jitter", "expires")
_DEFAULTS = (
    *(("max_runtime", _("longest run: a day")), ("jitter", _("jitter: none")), ("queue", _("queue: that of the task"))),
    *(("priority", _("priority: that of the task")), ("expires", _("expiry: never"))),
)


def _choice(label: Any, choices: tuple[tuple[str, Any], ...], help_text: Any = "") -> forms.ChoiceField:
    whole = [("", _("leave as it is")), *choices]
    return forms.ChoiceField(label=label, required=False, choices=whole, help_text=help_text)


class BulkChangeForm(ScheduleReasonForm):
    zone = forms.CharField(
        label=_("Time zone"),
        required=False,
        help_text=_("Like Europe/Paris, or an offset like +02:00."),
        widget=forms.TextInput(attrs={"size": 30, "autocomplete": "off", "list": "wheel-zones"}),
    )
    gap = _choice(_("Times that the clocks skip"), GAP_CHOICES, _("When clocks go forward."))
    fold = _choice(_("Times that occur twice"), FOLD_CHOICES, _("When clocks go back."))
    catch_up = _choice(_("Instants that were missed"), CATCH_UP_CHOICES)
    catch_up_window = DurationMsField(label=_("Within"), help_text=_("How long ago, where all run."))
    overlap = _choice(_("While an earlier run is not over"), OVERLAP_CHOICES)
    max_runtime = DurationMsField(
        label=_("Longest run"), help_text=_("A run counts as over after this time, unless its worker reports its end.")
    )
    jitter = DurationMsField(label=_("Jitter"), help_text=_("A run is due so much after its instant, at most."))
    jitter_by = _choice(_("Jitter is"), JITTER_BY_CHOICES)
    queue = forms.CharField(label=_("Queue"), required=False, widget=forms.TextInput(attrs={"size": 30}))
    priority = forms.IntegerField(label=_("Priority"), required=False, min_value=0, max_value=255)
    expires = DurationMsField(label=_("Expires"), help_text=_("A run that starts so long after it was due is dropped."))
    defaults = forms.MultipleChoiceField(
        label=_("Set to the default"), required=False, choices=_DEFAULTS, widget=forms.CheckboxSelectMultiple
    )
    zones = staticmethod(ScheduleForm.zones)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.order_fields([name for name in self.fields if name != "reason"])

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        changes = values["changes"] = self._changes(values)
        for name in values.get("defaults") or ():
            if name in changes:
                self.add_error(name, gettext("Enter a value, or set it to the default, not both."))
            changes[name] = None
        if not self.errors and not changes:
            self.add_error(None, gettext("Nothing is to be changed. Fill in a field first."))
        if not self.errors:
            self._check(changes)
        return values

    def _changes(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values that are given, as arguments of ``update``."""
        names = [name for name in self.fields if name not in ("defaults", "reason")]
        found = {name: values[name] for name in names if values.get(name) not in (None, "")}
        found |= {name: found[name] / 1_000 for name in _DURATIONS if name in found}
        if found.get("catch_up") in ("latest", "none"):
            found.setdefault("catch_up_window", None)  # the window is of "all" alone
        return found

    def _check(self, changes: dict[str, Any]) -> None:
        try:
            to_text(patched(_EXAMPLE, patch_of(None, changes)))
        except (ValueError, RecurrenceError) as error:
            text = str(error).removeprefix("recurrence: ").removeprefix("options.")
            argument = in_arguments(text).partition(" ")[0]
            field = argument if argument in self.fields else None
            self.add_error(field, labelled(self, field, text))
