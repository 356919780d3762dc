"""The wheel as a drawing: a ring for each level, the finest inside, and an arc for each bucket with tasks.

The present is at the top; later is clockwise, and a turn is the level's interval. An arc is as thick as its bucket is
full, in parts of the fullest arc of its ring, and a link to its tasks; with more than ``ARCS`` buckets in a turn it
stands for several. Due times are rounded up to the finest tick, so the span of a bucket's due times begins a tick minus
a millisecond before its expiration. Arcs stand for fixed instants, so that they turn as one piece (wheel.js).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from celery_wheel.values.format import format_duration
from django_wheel.drawing.due_load import DueLink
from django_wheel.formats import Moments, number

ARCS = 64
#: Half of the drawing; radius of the outermost ring; of the hole; and the space between two rings.
MIDDLE, OUTER, HOLE, GAP = 200.0, 176.0, 62.0, 5.0
#: The thinnest arc, so that a single task can be seen and clicked; and the narrowest, in turns.
THINNEST, NARROWEST = 3.0, 0.004


@dataclass(frozen=True, slots=True)
class Arc:
    """Neighbouring buckets with tasks that are due at or after ``from_ms`` and before ``to_ms``."""

    begins_ms: int
    ends_ms: int
    from_ms: int
    to_ms: int
    pending: int


@dataclass(frozen=True, slots=True)
class LevelRing:
    number: int  #: of the level
    tick_ms: int
    interval_ms: int
    size: int
    used: int  #: buckets with tasks
    pending: int
    now_ms: int  #: the wheel's time
    arcs: list[Arc]


def rings_of(levels: Iterable[Mapping[str, Any]]) -> list[LevelRing]:
    listed = list(levels)
    return [_ring(level, listed[0]["tick_ms"], listed[0]["current_time_ms"]) for level in listed]


def _ring(level: Mapping[str, Any], finest_ms: int, now_ms: int) -> LevelRing:
    tick_ms, buckets = level["tick_ms"], level["buckets"]
    size = level["interval_ms"] // tick_ms
    folded = -(-size // (ARCS - 1))  # the first and the last arc of a turn may be parts of one
    width_ms = folded * tick_ms
    counts = Counter[int]()
    for bucket in buckets:
        counts[bucket["expiration_ms"] // width_ms] += bucket["pending"]
    arcs = [
        Arc(begins_ms, ends_ms, begins_ms - finest_ms + 1, ends_ms - finest_ms + 1, counts[place])
        for place in sorted(counts)
        for begins_ms, ends_ms in ((place * width_ms, (place + 1) * width_ms),)
    ]
    return LevelRing(level["level"], tick_ms, level["interval_ms"], size, len(buckets), level["pending"], now_ms, arcs)


def draw_rings(rings: list[LevelRing], in_memory: int, times: Moments, link: DueLink) -> SafeString:
    band = (OUTER - HOLE) / max(1, len(rings))
    drawn = "".join(_draw(ring, HOLE + place * band, band - GAP, times, link) for place, ring in enumerate(rings))
    top = MIDDLE - OUTER
    present, below = escape(_("now")), escape(_("in memory"))  # xgettext does not look into f-strings
    return mark_safe(  # noqa: S308 - texts are escaped, all else are numbers
        f'<svg class="wheel-rings" aria-hidden="true" viewBox="0 0 400 400">{drawn}'
        f'<path class="wheel-now" d="M200 {top:g}l-6 -10h12z"/><text x="200" y="11">{present}</text>'
        f'<text class="wheel-count" x="200" y="203">{number(in_memory)}</text>'
        f'<text x="200" y="221">{below}</text></svg>'
    )


def _draw(ring: LevelRing, inner: float, thick: float, times: Moments, link: DueLink) -> str:
    most = max((arc.pending for arc in ring.arcs), default=1)
    label = escape(_("%(number)s pending, %(time)s (level %(level)s)"))
    arcs = "".join(
        f'<a tabindex="-1" href="{link.of(arc.from_ms, arc.to_ms)}"><title>{label % said}</title>'
        f'<path d="{_path(inner + high / 2, *turns_of(ring, arc))}" stroke-width="{high:.1f}"/></a>'
        for arc in ring.arcs
        for high in (max(THINNEST, thick * arc.pending / most),)
        for said in (
            {
                "number": number(arc.pending),
                "time": times.span(arc.begins_ms, arc.ends_ms),
                "level": ring.number,
            },
        )
    )
    middle, name = inner + thick / 2, escape(_("level %(number)s") % {"number": ring.number})
    return (
        f'<circle class="wheel-track" cx="200" cy="200" r="{middle:g}" stroke-width="{thick:g}"><title>{name}</title>'
        f'</circle><g class="wheel-ring" data-interval="{ring.interval_ms}">{arcs}</g>'
    )


def describe_turns(rings: Iterable[LevelRing]) -> str:
    """Return the turns of the rings; texts on the rings would lie on their arcs."""
    turns = ", ".join(format_duration(ring.interval_ms) for ring in rings)
    return _("From the inside, a turn is: %(turns)s.") % {"turns": turns}


def turns_of(ring: LevelRing, arc: Arc) -> tuple[float, float]:
    """Return begin and end of the arc in turns from the top; what is over is at the top."""
    begin, end = ((at_ms - ring.now_ms) / ring.interval_ms for at_ms in (arc.begins_ms, arc.ends_ms))
    begin = min(max(begin, 0.0), 1 - NARROWEST)
    return begin, max(min(end, 1.0), begin + NARROWEST)


def _path(radius: float, begin: float, end: float) -> str:
    (x, y), (to_x, to_y) = (
        (MIDDLE + radius * math.sin(angle), MIDDLE - radius * math.cos(angle))
        for angle in (math.tau * begin, math.tau * (end - NARROWEST / 2))
    )
    return f"M{x:.1f} {y:.1f}A{radius:.1f} {radius:.1f} 0 {int(end - begin > 0.5)} 1 {to_x:.1f} {to_y:.1f}"


def describe(ring: LevelRing) -> str:
    """Return the ring in words: a turn of 4 min 22 s, 3 of 512 buckets in use."""
    text = ngettext(
        "a turn is %(interval)s; %(used)s of %(size)s bucket in use",
        "a turn is %(interval)s; %(used)s of %(size)s buckets in use",
        ring.size,
    )
    return text % {"interval": format_duration(ring.interval_ms), "used": number(ring.used), "size": number(ring.size)}
