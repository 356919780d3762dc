"""``django_wheel.formats`` as template filters, and times beside their distance from now as tags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import template
from django.template.defaultfilters import filesizeformat, stringfilter
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone_name, localtime

from celery_wheel.values import format as values
from django_wheel import formats
from django_wheel.project import masked_text
from django_wheel.views import payload

register = template.Library()

register.filter("instant", formats.instant)
register.filter("second", formats.second)
register.filter("duration", values.format_duration)
register.filter("headers", formats.format_headers)
register.filter("part", values.format_part)
register.filter("number", formats.number)
register.filter("state_label", formats.state_label)
register.filter("schedule_state", formats.schedule_state)


@register.filter
@stringfilter
def printable(text: str, cut: Any = values.NAME_CUT) -> str:
    return values.printable(text, int(cut))


@register.filter
@stringfilter
def masked(text: str) -> str:
    return masked_text(text)


@register.filter
@stringfilter
def error_text(text: str, may_view_payload: Any) -> str:
    return payload.error_text(text, bool(may_view_payload))


@register.filter
def gate_label(gate: Any) -> str:
    return formats.gate_label(gate.scope, gate.name)


@register.simple_tag
def zone_name() -> str:
    """Return the time zone of all times of a page, with its present offset: Europe/Berlin (UTC+01:00)."""
    offset = f"{localtime():%z}"
    return f"{get_current_timezone_name()} (UTC{offset[:3]}:{offset[3:5]})"


@register.simple_tag
def time(at_ms: int | None, now_ms: int | None = None) -> SafeString:
    """Return a time with its date unless that is today, and its seconds unless they are 0; the whole in its title."""
    if not at_ms:
        return SafeString("-")
    whole = formats.instant(at_ms)
    shown = formats.clock(at_ms, whole, now_ms).removesuffix(":00.000").removesuffix(".000")
    return format_html('<time datetime="{}" title="{}">{}</time>', values.format_utc(at_ms), whole, shown)


@register.simple_tag
def when(at_ms: int | None, now_ms: int) -> SafeString:
    distance = formats.relative(at_ms, now_ms)
    return format_html('{} <span class="wheel-relative">{}</span>', time(at_ms, now_ms), distance)


# -- the cells that the lists share: with a template's nodes for each of them they took half of a page's time ----------


@register.simple_tag(takes_context=True)
def pick(context: Any, row: int, task: Any) -> SafeString:
    """Return the checkbox of a row."""
    checked = "" if context["query"].all_selected else " checked"
    texts = (row, _name(task.task), _name(task.task_id, 40), checked)
    return format_html('<input type="checkbox" name="row" value="{}" aria-label="{} {}"{}>', *texts)


@register.simple_tag(takes_context=True)
def heads(context: Any, *names: str) -> SafeString:
    """Return the heads of the columns ``names``, as far as the page has these columns."""
    columns = context["columns"]
    return SafeString("".join([columns[name][0] for name in names if name in columns]))


@register.simple_tag(takes_context=True)
def cells(context: Any, row: Any, *names: str) -> SafeString:
    """Return the cells of the columns ``names``, as far as the page has these columns."""
    columns = context["columns"]
    return SafeString("".join([f"{columns[name][1]}{_CELLS[name](row)}</td>" for name in names if name in columns]))


def _name(text: Any, cut: int = values.NAME_CUT) -> SafeString:
    return escape(values.printable(str(text), cut))


def _task(row: Any) -> str:
    task_id = f'<code class="wheel-under">{_name(row.task_id, 40)}</code>' if row.task_id else ""
    return f'<span class="wheel-name" title="{_name(row.task, 300)}">{_name(row.task)}</span>{task_id}'


#: Column → the content of its cell, as HTML.
_CELLS: dict[str, Callable[[Any], str]] = {
    "task": _task,
    "target": lambda row: _name(row.target),
    "priority": lambda row: "" if row.priority is None else str(row.priority),
    "actor": lambda row: _name(row.actor),
    "key": lambda row: _name(row.key or "", 40),
    "group": lambda row: _name(row.group or "", 40),
    "size": lambda row: filesizeformat(row.size),
    "shard": lambda row: str(row.shard),
    "late_ms": lambda row: escape(values.format_duration(row.late_ms)),
    "dispatched_ms": lambda row: time(row.dispatched_ms),
}
