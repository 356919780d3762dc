"""``django_wheel.formats`` as template filters, and times beside their distance from now as tags."""

from __future__ import annotations

from typing import Any

from django import template
from django.template.defaultfilters import stringfilter
from django.utils.html import format_html

from celery_wheel.values import format as values
from django_wheel import formats
from django_wheel.project import masked_text
from django_wheel.views import payload

register = template.Library()

register.filter("instant", formats.instant)
register.filter("clock", formats.clock)
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
def time(at_ms: int | None) -> str:
    """Return a time with its date unless that is today, and its seconds unless they are 0; the whole in its title."""
    if not at_ms:
        return "-"
    shown = formats.clock(at_ms).removesuffix(":00.000").removesuffix(".000")
    texts = (values.format_utc(at_ms), formats.instant(at_ms), shown)
    return format_html('<time datetime="{}" title="{}">{}</time>', *texts)


@register.simple_tag
def when(at_ms: int | None, now_ms: int) -> str:
    return format_html('{} <span class="wheel-relative">{}</span>', time(at_ms), formats.relative(at_ms, now_ms))
