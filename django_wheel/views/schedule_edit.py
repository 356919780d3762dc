"""The form of a schedule, with a preview of its next instants, which the page's script also asks for alone."""

from __future__ import annotations

from functools import cache
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.loader import render_to_string
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import get_language, gettext, override
from django.utils.translation import gettext_lazy as _

from celery_wheel.control import now_ms
from celery_wheel.errors import WheelError
from celery_wheel.requests.results import ScheduleAnswer
from celery_wheel.store.schedule_model import Schedule
from celery_wheel.values import json_object
from celery_wheel.values.format import printable
from celery_wheel.values.log import get_logger
from django_wheel.formats import ngettext_lazy
from django_wheel.project import project_wheel, wheel_app
from django_wheel.schedule_form import KINDS, SPECS, Document, ScheduleForm, new_values, to_values
from django_wheel.views.requests import Render, address, attempt, attempt_form, request_options
from django_wheel.views.schedule import SHOWN, upcoming_values
from django_wheel.views.schedule_actions import CHANGE, ROLLBACK, log_answers, report

logger = get_logger(__name__)

_CREATED = ngettext_lazy("%(number)s schedule is created: %(names)s.", "%(number)s schedules are created: %(names)s.")
#: Errors of these fields are not shown before the form is sent.
_LATER = ("name", "task", "reason")


def handle(request: HttpRequest, render: Render) -> HttpResponse:
    """Show the form; or, when the user has sent it, show its preview or save it."""

    def act() -> HttpResponse:
        schedule = _schedule(request.GET.get("name"))
        form = _form(request, schedule)
        if request.method == "POST" and "preview" not in request.POST and form.is_valid():
            name = form.cleaned_data["name"] if schedule is None else schedule.name
            if _is_current(form, schedule) and attempt_form(form, lambda: _save(request, form, name, schedule is None)):
                here = address(request, "schedule_one")
                return HttpResponseRedirect(f"{here}?{urlencode({'name': name})}")
        if schedule is None:
            title = gettext("New schedule")
        else:
            title = gettext("Change %(name)s") % {"name": printable(schedule.name)}
        return render(title, _values(form, schedule))

    return attempt(request, address(request, "schedule_changelist"), act)


def preview(request: HttpRequest) -> HttpResponse:
    form = ScheduleForm(request.POST, mask=project_wheel().mask)
    form.is_valid()
    html = render_to_string("django_wheel/schedule_upcoming.html", _preview_values(form), request)
    errors = {name: list(texts) for name, texts in form.errors.items() if name not in _LATER}
    return JsonResponse({"html": html, "errors": errors})


def _schedule(name: str | None) -> Schedule | None:
    if name is None:
        return None
    found = project_wheel().store.browse.schedule(name) if name and "\0" not in name else None
    if found is None or found.schedule is None:
        raise Http404(f"the store has no schedule {name!r:.100}")
    return found.schedule


def _form(request: HttpRequest, schedule: Schedule | None) -> ScheduleForm:
    document: Document = {}
    mask = project_wheel().mask
    values = new_values(get_current_timezone_name())
    if schedule is not None:
        document = json_object(schedule.definition)
        values |= {"name": schedule.name, "made": schedule.made, "revision": schedule.revision}
        try:
            values |= to_values(mask.value(document))
        except (KeyError, TypeError, AttributeError):  # unreadable: the form replaces the whole definition
            document = {}
    data = request.POST if request.method == "POST" else None
    return ScheduleForm(data, document=document, is_new=schedule is None, mask=mask, initial=values)


def _values(form: ScheduleForm, schedule: Schedule | None) -> dict[str, Any]:
    if not form.is_bound:  # the preview of the initial values
        initial = ScheduleForm({**_sent(form)}, document=form.before, is_new=form.is_new, mask=form.mask)
        initial.is_valid()
        shown = _preview_values(initial)
    else:
        form.is_valid()
        shown = _preview_values(form)
    return {
        "form": form,
        "schedule": schedule,
        "kinds": [(kind, label, [form[name] for name in SPECS[kind].values()]) for kind, label in KINDS],
        "tasks": _tasks(),
        "shown": SHOWN,
        **shown,
    }


def _sent(form: ScheduleForm) -> dict[str, Any]:
    """Return the initial values as a browser would send them."""
    sent: dict[str, Any] = {}
    for name, field in form.fields.items():
        value = form.get_initial_for_field(field, name)
        widget: Any = field.widget
        if hasattr(widget, "decompress"):
            sent |= {f"{name}_{number}": part for number, part in enumerate(widget.decompress(value))}
        elif value is not None:
            sent[name] = value
    return sent


def _preview_values(form: ScheduleForm) -> dict[str, Any]:
    if form.recurrence is None:
        return {"upcoming": None}
    try:
        return upcoming_values(form.recurrence, now_ms(), form.cleaned_data.get("made") or 0)
    except WheelError as error:
        return {"upcoming": None, "problem": str(error)}


def _tasks() -> list[str]:
    app = wheel_app()
    if app is None:
        return []
    import_task_modules(app)
    return sorted(name for name in app.tasks if not name.startswith("celery."))


@cache
def import_task_modules(app: Any) -> None:
    """Import the modules of the project's tasks as a worker does: once, since Celery also checks the project then.

    The checks leave another language behind than that of the request. A module that only the workers can import costs
    the form its suggestions, and not the form.
    """
    try:
        with override(get_language()):
            app.loader.import_default_modules()
    except Exception as error:  # raised by modules of the project
        logger.warning(
            "the form of a schedule offers the tasks imported so far: a module of the app's tasks cannot be imported "
            "in this process (%r)",
            error,
            extra={"action": "tasks_not_imported"},
        )


def _is_current(form: ScheduleForm, schedule: Schedule | None) -> bool:
    """Return whether the schedule is as it was when the user opened the form; otherwise add an error."""
    seen = form.cleaned_data["revision"]
    if schedule is None or seen is None or seen == schedule.revision:
        return True
    text = gettext("The schedule was changed meanwhile, to revision %(number)s. Open the form again, and compare.")
    form.add_error(None, text % {"number": schedule.revision})
    return False


def _save(request: HttpRequest, form: ScheduleForm, name: str, is_new: bool) -> bool:
    """Ask the holder; return whether the schedule is as the form has it."""
    reason = form.cleaned_data["reason"]
    how = {**request_options(request, reason), "transactional": False}
    options = {"source": "api"} if is_new else {}
    answers: dict[str, ScheduleAnswer] = project_wheel().schedules.change(
        "create" if is_new else "update", {name: form.document}, how=how, **options
    )
    answer = answers[name]
    if is_new and answer.result == "already":
        form.add_error("name", gettext("A schedule of this name exists already."))
        return False
    if answer.result == "refused":
        form.add_error(None, form.mask.text(answer.reason))
        return False
    report(request, answers, _CREATED if is_new else CHANGE.done, ROLLBACK.already)
    log_answers(request, _("Create") if is_new else _("Change"), answers, reason)
    return answer.result != "unknown"
