"""The forms of a schedule and of changes of several schedules, and a definition as the values of a form, and back.

A form has fields for days of the week, one calendar of holidays, and dates; any other part of ``without`` is JSON in
the field ``calendar``. A definition that the form does not change stays as it is, also where it names a default.
Errors are those of the definition, each beside the field that its path names, before anything is requested. Fields of
kinds other than the chosen one are ignored. ``recurrence`` is set if the recurrence alone is valid, so a preview needs
no task. In a change of several schedules a field that is left empty leaves them as they are; the holder decides for
each name whether it can take the values, since its definition may be unreadable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, tzinfo
from typing import Any
from zoneinfo import available_timezones

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from celery_wheel import recurring
from celery_wheel.errors import PackageMissing, RecurrenceError, WheelError
from celery_wheel.recurring import Recurrence
from celery_wheel.recurring.definition import MAX_RUNTIME_MS, patched, to_text
from celery_wheel.recurring.local import zone_of
from celery_wheel.requests.schedules.definitions import in_arguments, patch_of
from celery_wheel.values.mask import NO_MASK, Mask
from celery_wheel.values.text import text_rule, whole_number
from django_wheel.forms import DurationMsField, ScheduleReasonForm, moment_ms, moment_text

Document = dict[str, Any]

CRONTAB = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year", "second")
#: Kind of a spec → its fields in the form: the name in the definition → the name in the form.
SPECS: dict[str, dict[str, str]] = {
    "crontab": {name: name for name in CRONTAB},
    "interval": {"every_ms": "every", "anchor_ms": "anchor"},
    "rrule": {"text": "rrule"},
    "solar": {"event": "event", "latitude": "latitude", "longitude": "longitude"},
    "instants": {"at_ms": "instants"},
}
#: Values of the recurrence, and of the whole definition: name in the definition → (name in the form, default).
OF_RECURRENCE: dict[str, tuple[str, Any]] = {
    "zone": ("zone", "UTC"),
    "gap": ("gap", "shift"),
    "fold": ("fold", "first"),
    "start_ms": ("start", None),
    "until_ms": ("until", None),
    "times": ("times", None),
}
OF_DEFINITION: dict[str, tuple[str, Any]] = {
    "task": ("task", None),
    "args": ("args", []),
    "kwargs": ("kwargs", {}),
    "options": ("options", {}),
    "catch_up": ("catch_up", "latest"),
    "catch_up_ms": ("catch_up_within", None),
    "overlap": ("overlap", "allow"),
    "max_runtime_ms": ("max_runtime", MAX_RUNTIME_MS),
    "jitter_ms": ("jitter", 0),
    "jitter_by": ("jitter_by", "run"),
}
CALENDAR = ("weekdays", "holidays_country", "holidays_subdivision", "dates", "calendar")
_MOMENTS, _JSON = ("start", "until"), ("args", "kwargs", "options")


def to_values(document: Mapping[str, Any]) -> Document:
    """Return the initial values of the form for a definition that can be read."""
    recurrence = document["recurrence"]
    spec, zone = recurrence["spec"], zone_of(recurrence.get("zone", "UTC")) or UTC
    values: Document = {"kind": spec["kind"]}
    if spec["kind"] == "crontab":
        values |= {**dict.fromkeys(CRONTAB, "*"), "second": "0"}
    for name, field in SPECS[spec["kind"]].items():
        if name in spec:
            values[field] = spec[name]
    if "anchor" in values:
        values["anchor"] = moment_text(values["anchor"], zone)
    if "instants" in values:
        values["instants"] = "\n".join(moment_text(at_ms, zone) for at_ms in values["instants"])
    for part, names in ((recurrence, OF_RECURRENCE), (document, OF_DEFINITION)):
        values |= {field: part.get(name, default) for name, (field, default) in names.items()}
    values |= {field: moment_text(values[field], zone) for field in _MOMENTS if values[field] is not None}
    values |= {field: json.dumps(values[field], indent=2, ensure_ascii=False) for field in _JSON}
    return values | _calendar_values(recurrence.get("without"))


def _calendar_values(without: Document | None) -> Document:
    """Return a calendar as values of the form; parts for which it has no field are JSON."""
    values: Document = {"weekdays": [], "holidays_country": "", "holidays_subdivision": "", "dates": ""}
    rest = []
    for part in _parts(without):
        if part["kind"] == "weekdays" and not values["weekdays"]:
            values["weekdays"] = part["days"]
        elif part["kind"] == "holidays" and not values["holidays_country"]:
            values["holidays_country"] = part["country"]
            values["holidays_subdivision"] = part.get("subdivision", "")
        elif part["kind"] == "dates" and not values["dates"]:
            values["dates"] = "\n".join(part["dates"])
        else:
            rest.append(part)
    found = joined(rest)
    return {**values, "calendar": json.dumps(found, indent=2, ensure_ascii=False) if found else ""}


def _parts(without: Document | None) -> list[Document]:
    if without is None:
        return []
    return list(without["parts"]) if without["kind"] == "any_of" else [without]


def joined(parts: list[Document]) -> Document | None:
    if len(parts) > 1:
        return {"kind": "any_of", "parts": parts}
    return parts[0] if parts else None


def to_document(before: Document, spec: Document, without: Document | None, values: Mapping[str, Any]) -> Document:
    """Return a definition with the values of the form, in the place of those that it had before."""
    recurrence = dict(before.get("recurrence") or {"kind": "recurrence"})
    recurrence["spec"] = spec
    _put(recurrence, "without", without, None)
    for name, (field, default) in OF_RECURRENCE.items():
        _put(recurrence, name, values.get(field), default)
    document = {**before, "recurrence": recurrence}
    for name, (field, default) in OF_DEFINITION.items():
        _put(document, name, values.get(field), default)
    return document


def _put(document: Document, name: str, value: Any, default: Any) -> None:
    if value is None or value == "":
        value = default
    if value == document.get(name, default):
        return
    if value == default:
        del document[name]
    else:
        document[name] = value


def field_of(path: str, kind: str) -> str | None:
    """Return the field of the form for the path in a RecurrenceError; None for the form as a whole."""
    path = path.removeprefix("recurrence.")
    if path.startswith("without"):
        return "calendar"
    if path == "spec" or path.startswith("spec."):
        fields = SPECS[kind]
        name = path.removeprefix("spec").removeprefix(".").partition("[")[0]
        return fields.get(name, next(iter(fields.values())))
    name = path.partition(".")[0].partition("[")[0]
    found = OF_RECURRENCE.get(name) or OF_DEFINITION.get(name)
    return found[0] if found else None


KINDS = (
    ("crontab", _("Crontab")),
    ("interval", _("Interval")),
    ("rrule", _("Rule of RFC 5545")),
    ("solar", _("Event of the sun")),
    ("instants", _("List of instants")),
)
GAP_CHOICES = (("shift", _("moved by the length of the gap")), ("skip", _("left out")))
FOLD_CHOICES = (("first", _("the first time")), ("second", _("the second time")), ("both", _("both times")))
_WEEKDAYS = (
    *(("mon", _("Monday")), ("tue", _("Tuesday")), ("wed", _("Wednesday")), ("thu", _("Thursday"))),
    *(("fri", _("Friday")), ("sat", _("Saturday")), ("sun", _("Sunday"))),
)
_EVENTS = (
    *(("sunrise", _("sunrise")), ("solar_noon", _("solar noon")), ("sunset", _("sunset"))),
    *(("dawn_civil", _("civil dawn")), ("dusk_civil", _("civil dusk"))),
    *(("dawn_nautical", _("nautical dawn")), ("dusk_nautical", _("nautical dusk"))),
    *(("dawn_astronomical", _("astronomical dawn")), ("dusk_astronomical", _("astronomical dusk"))),
)
CATCH_UP_CHOICES = (("latest", _("the latest runs")), ("all", _("all run, within a time")), ("none", _("none runs")))
OVERLAP_CHOICES = (
    ("allow", _("both run")),
    ("skip", _("the later one is skipped")),
    ("queue_one", _("the later one waits")),
    ("cancel_running", _("the earlier one is cancelled")),
)
JITTER_BY_CHOICES = (("run", _("another one for each run")), ("name", _("the same one for each run")))
_PATH = re.compile(r"(?:recurrence: )?([\w.\[\]]+) (.+)", re.DOTALL).fullmatch


def _text(label: Any, help_text: Any = "", size: int = 12, **attrs: Any) -> forms.CharField:
    widget = forms.TextInput(attrs={"size": size, "autocomplete": "off", "spellcheck": "false", **attrs})
    return forms.CharField(label=label, required=False, help_text=help_text, widget=widget)


def _lines(label: Any, help_text: Any = "", rows: int = 4) -> forms.CharField:
    widget = forms.Textarea(attrs={"rows": rows, "cols": 50, "spellcheck": "false"})
    return forms.CharField(label=label, required=False, help_text=help_text, widget=widget)


def _choice(label: Any, choices: tuple[tuple[str, Any], ...], help_text: Any = "") -> forms.ChoiceField:
    return forms.ChoiceField(label=label, required=False, choices=choices, help_text=help_text)


_TIME_HELP = _("A date and time in the schedule's zone, or with an offset: 2026-11-21 08:30+01:00.")


class PolicyForm(ScheduleReasonForm):
    """The values that a change of several schedules has as well."""

    zone = _text(_("Time zone"), _("Like Europe/Paris, or an offset like +02:00."), 30, list="wheel-zones")
    gap = _choice(_("Times that the clocks skip"), GAP_CHOICES, _("When clocks go forward."))
    fold = _choice(_("Times that occur twice"), FOLD_CHOICES, _("When clocks go back."))
    catch_up = _choice(_("Instants that were missed"), CATCH_UP_CHOICES)
    overlap = _choice(_("While an earlier run is not over"), OVERLAP_CHOICES)
    max_runtime = DurationMsField(
        label=_("Longest run"), help_text=_("A run counts as over after this time, unless its worker reports its end.")
    )
    jitter = DurationMsField(label=_("Jitter"), help_text=_("A run is due so much after its instant, at most."))
    jitter_by = _choice(_("Jitter is"), JITTER_BY_CHOICES)

    @staticmethod
    def zones() -> list[str]:
        return sorted(available_timezones())


class ScheduleForm(PolicyForm):
    name = forms.CharField(label=_("Name"), required=False, strip=False, widget=forms.TextInput(attrs={"size": 50}))
    task = _text(_("Task"), size=50, list="wheel-tasks")
    args = _lines(_("Arguments"), _('A JSON list, like [1, "acme"].'), rows=2)
    kwargs = _lines(_("Keyword arguments"), _('A JSON object, like {"tenant": "acme"}.'), rows=2)
    options = _lines(
        _("Options"), _("A JSON object with options of apply_async: queue, priority, expires (seconds) and others."), 2
    )
    kind = forms.ChoiceField(label=_("Kind"), choices=KINDS, initial="crontab", widget=forms.RadioSelect)
    every = DurationMsField(label=_("Every"))
    anchor = _text(_("Counted from"), _TIME_HELP, 24, placeholder="1970-01-01 00:00")
    minute = _text(_("Minute"), "0-59, */15")
    hour = _text(_("Hour"), "0-23, 8-17")
    day_of_week = _text(_("Day of the week"), "mon-fri, 0-6")
    day_of_month = _text(_("Day of the month"), "1-31, 1,15")
    month_of_year = _text(_("Month"), "1-12, */3")
    second = _text(_("Second"), "0-59")
    rrule = _lines(_("Rule"), _("Lines DTSTART and RRULE, RDATE, EXDATE. Times are those of the schedule's zone."))
    event = _choice(_("Event"), _EVENTS)
    latitude = _text(_("Latitude"), _("Degrees; north is positive."), inputmode="decimal")
    longitude = _text(_("Longitude"), _("Degrees; east is positive."), inputmode="decimal")
    instants = _lines(
        _("Instants"), _("One on each line, in the schedule's zone or with an offset: 2026-11-21 08:30+01:00.")
    )
    start = _text(_("From"), _TIME_HELP, 24)
    until = _text(_("Until"), _("The last instant at which the schedule may run."), 24)
    times = _text(_("Largest number of runs"), inputmode="numeric")
    weekdays = forms.MultipleChoiceField(
        label=_("Days of the week"), required=False, choices=_WEEKDAYS, widget=forms.CheckboxSelectMultiple
    )
    holidays_country = _text(_("Public holidays of the country"), _("A code like DE."), 6)
    holidays_subdivision = _text(_("Part of the country"), _("A code like BY; empty for the whole country."), 6)
    dates = _lines(_("Dates"), _("One on each line, like 2026-12-24."), rows=2)
    calendar = _lines(_("Other calendar"), _('A calendar as JSON, like {"kind": "business_days", "country": "DE"}.'), 2)
    catch_up_within = DurationMsField(label=_("Within"), help_text=_("How long ago, where all run."))
    made = forms.IntegerField(required=False, min_value=0, widget=forms.HiddenInput)
    revision = forms.IntegerField(required=False, widget=forms.HiddenInput)

    def __init__(
        self,
        data: Any = None,
        *,
        document: Document | None = None,
        is_new: bool = True,
        mask: Mask = NO_MASK,
        **more: Any,
    ) -> None:
        super().__init__(data, **more)
        self.mask = mask
        self.before: Document = document or {}
        self.is_new = is_new
        self.recurrence: Recurrence | None = None
        self.document: Document | None = None
        if not is_new:
            self.fields["name"].widget.attrs["readonly"] = True

    # -- cleaning ------------------------------------------------------------------------------------------

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        kind = values.get("kind", "crontab")
        zone = self._zone(values)
        read = {name: self._read(values, name, reader) for name, reader in self._readers(zone, kind).items()}
        values |= read
        if not self.is_new:
            self._restore(values)
        spec, without = self._spec(values, kind), self._without(values)
        if self.is_new and (rule := text_rule(values.get("name"))):
            self.add_error("name", gettext("The name must be %(rule)s.") % {"rule": rule})
        if any(name in self.errors for name in (*SPECS[kind].values(), "start", "until", "times")):
            return values
        is_calendar_wrong = any(name in self.errors for name in CALENDAR)
        self._check(to_document(self.before, spec, None if is_calendar_wrong else without, values), kind)
        if is_calendar_wrong:
            self.recurrence = self.document = None
        return values

    def _restore(self, values: dict[str, Any]) -> None:
        """Put the former values in the place of masks: the form never had them."""
        for name in ("args", "kwargs", "options"):
            try:
                values[name] = self.mask.restored(values[name], self.before.get(name))
            except ValueError as error:
                self.add_error(name, str(error))

    def _zone(self, values: dict[str, Any]) -> tzinfo:
        name = values["zone"] = values.get("zone") or "UTC"
        return zone_of(name) or UTC  # an unknown zone is an error of the definition

    def _readers(self, zone: tzinfo, kind: str) -> dict[str, Any]:
        """Return the reader of each field whose text is not the value itself."""

        def moment(text: str) -> int:
            return moment_ms(text, zone)

        found: dict[str, Any] = {"start": moment, "until": moment, "times": _whole, "calendar": _json}
        found |= dict.fromkeys(("args", "kwargs", "options"), _json)
        if kind == "interval":
            found["anchor"] = moment
        elif kind == "solar":
            found |= {"latitude": _degrees, "longitude": _degrees}
        elif kind == "instants":
            found["instants"] = lambda text: [moment(line) for line in text.split("\n") if line.strip()]
        return found

    def _read(self, values: dict[str, Any], name: str, reader: Any) -> Any:
        text = str(values.get(name) or "").replace("\r\n", "\n").strip()
        if not text:
            return None
        try:
            return reader(text)
        except ValidationError as error:
            self.add_error(name, error)
            return None

    def _spec(self, values: dict[str, Any], kind: str) -> Document:
        spec: Document = {"kind": kind}
        for name, field in SPECS[kind].items():
            value = values.get(field)
            if isinstance(value, str):
                value = value.replace("\r\n", "\n").strip()
            if kind == "crontab":
                value = value or ("0" if name == "second" else "*")
                if value == ("0" if name == "second" else "*"):
                    continue
            if value is not None and value != "":
                spec[name] = value
            elif name != "anchor_ms" and field not in self.errors:
                self.add_error(field, gettext("This field is required."))
        return spec

    def _without(self, values: dict[str, Any]) -> Document | None:
        """Return the calendar to leave out; each part is checked by itself, for an error beside its field."""
        if self.before and not set(CALENDAR) & set(self.changed_data):
            found: Document | None = self.before["recurrence"].get("without")
            return found
        parts: list[tuple[str, Document]] = []
        if values.get("weekdays"):
            parts.append(("weekdays", {"kind": "weekdays", "days": values["weekdays"]}))
        country, subdivision = values.get("holidays_country"), values.get("holidays_subdivision")
        if country or subdivision:
            place = {"country": country or "", **({"subdivision": subdivision} if subdivision else {})}
            parts.append(("holidays_country", {"kind": "holidays", **place}))
        if dates := (values.get("dates") or "").replace(",", " ").split():
            parts.append(("dates", {"kind": "dates", "dates": dates}))
        if values.get("calendar") is not None:
            parts.append(("calendar", values["calendar"]))
        for field, part in parts:
            self._check_calendar(field, part)
        return joined([part for _field, part in parts])

    def _check_calendar(self, field: str, part: Any) -> None:
        try:
            if not isinstance(recurring.from_json(part), recurring.Calendar):
                self.add_error(field, gettext("This is not a calendar."))
        except RecursionError:
            self.add_error(field, gettext("This is nested too deeply."))
        except (RecurrenceError, PackageMissing) as error:
            path = _PATH(str(error))
            is_part = path is not None and path[1] == "subdivision"
            self.add_error("holidays_subdivision" if is_part and field == "holidays_country" else field, str(error))

    def _check(self, document: Document, kind: str) -> None:
        try:
            found = recurring.from_json(document["recurrence"])
            self.recurrence = found if isinstance(found, Recurrence) else None
            to_text(document)
            self.document = document
        except WheelError as error:
            found_path = _PATH(str(error))
            field = field_of(found_path[1], kind) if found_path else None
            text = str(error).removeprefix("recurrence: ").removeprefix("spec.")
            self.add_error(field, self.mask.text(labelled(self, field, text)))


def labelled(form: forms.Form, field: str | None, text: str) -> str:
    """Return an error with the label of its field in place of a name that the form does not show, like jitter_ms."""
    name, space, rest = text.partition(" ")
    return f"{form.fields[field].label}{space}{rest}" if field and name.endswith("_ms") else text


def _json(text: str) -> Any:
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
        return value
    except (ValueError, RecursionError) as error:
        raise ValidationError(gettext("This is not JSON: %(error)s.") % {"error": error}) from None


def _whole(text: str) -> int:
    number = whole_number(text)
    if number is None:
        raise ValidationError(gettext("Enter a whole number."))
    return number


def _degrees(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValidationError(gettext("Enter a number.")) from None


def new_values(zone: str) -> Document:
    values: Document = {"kind": "crontab", **dict.fromkeys(CRONTAB, "*"), "minute": "0", "hour": "9", "second": "0"}
    values |= {"zone": zone, "args": "[]", "kwargs": "{}", "options": "{}", "max_runtime": MAX_RUNTIME_MS}
    return values


#: A definition without any of the values that the form changes.
_EXAMPLE = '{"recurrence": {"kind": "recurrence", "spec": {"kind": "crontab"}}, "task": "example"}'

_AFTER_CATCH_UP = ("overlap", "max_runtime", "jitter", "jitter_by", "queue", "priority", "expires")
_DURATIONS = ("catch_up_window", "max_runtime", "jitter", "expires")
_DEFAULTS = (
    *(("max_runtime", _("longest run: a day")), ("jitter", _("jitter: none")), ("queue", _("queue: that of the task"))),
    *(("priority", _("priority: that of the task")), ("expires", _("expiry: never"))),
)


class BulkChangeForm(PolicyForm):
    catch_up_window = DurationMsField(label=_("Within"), help_text=_("How long ago, where all run."))
    queue = forms.CharField(label=_("Queue"), required=False, widget=forms.TextInput(attrs={"size": 30}))
    priority = forms.IntegerField(label=_("Priority"), required=False, min_value=0, max_value=255)
    expires = DurationMsField(label=_("Expires"), help_text=_("A run that starts so long after it was due is dropped."))
    defaults = forms.MultipleChoiceField(
        label=_("Set to the default"), required=False, choices=_DEFAULTS, widget=forms.CheckboxSelectMultiple
    )
    field_order = ("zone", "gap", "fold", "catch_up", "catch_up_window", *_AFTER_CATCH_UP, "defaults", "reason")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for field in self.fields.values():
            if isinstance(field, forms.ChoiceField) and not isinstance(field, forms.MultipleChoiceField):
                field.choices = [("", _("leave as it is")), *field.choices]  # type: ignore[misc]

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
