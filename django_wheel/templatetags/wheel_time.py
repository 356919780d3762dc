"""Times beside their distance from now, and headers without nulls, as tags of templates."""

from __future__ import annotations

from django import template
from django.utils.html import format_html

from celery_wheel.values.format import format_utc
from django_wheel import formats

register = template.Library()

register.filter("headers", formats.format_headers)


@register.simple_tag
def time(at_ms: int | None) -> str:
    """Return a time with its date unless that is today, and its seconds unless they are 0; the whole in its title."""
    if not at_ms:
        return "-"
    shown = formats.clock(at_ms).removesuffix(":00.000").removesuffix(".000")
    values = (format_utc(at_ms), formats.instant(at_ms), shown)
    return format_html('<time datetime="{}" title="{}">{}</time>', *values)


@register.simple_tag
def when(at_ms: int | None, now_ms: int) -> str:
    """Return a time and its distance from now."""
    return format_html('{} <span class="wheel-relative">{}</span>', time(at_ms), formats.relative(at_ms, now_ms))
