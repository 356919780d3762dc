"""``django_wheel.present`` for templates."""

from __future__ import annotations

from typing import Any

from django import template
from django.template.defaultfilters import stringfilter

from django_wheel import present

register = template.Library()

register.filter("instant", present.instant)
register.filter("clock", present.clock)
register.filter("duration", present.duration)
register.filter("part", present.part)


@register.filter
@stringfilter
def seen(text: str, cut: Any = present.NAME_CUT) -> str:
    return present.seen(text, int(cut))


@register.filter
def number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
