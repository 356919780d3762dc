"""``django_wheel.formats`` as template filters."""

from __future__ import annotations

from typing import Any

from django import template
from django.template.defaultfilters import stringfilter

from django_wheel import formats
from django_wheel.project import masked_text
from django_wheel.views import payload

register = template.Library()

register.filter("instant", formats.instant)
register.filter("clock", formats.clock)
register.filter("second", formats.second)
register.filter("duration", formats.format_duration)
register.filter("part", formats.format_part)
register.filter("number", formats.number)
register.filter("state_label", formats.state_label)
register.filter("schedule_state", formats.schedule_state)


@register.filter
@stringfilter
def printable(text: str, cut: Any = formats.NAME_CUT) -> str:
    return formats.printable(text, int(cut))


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
