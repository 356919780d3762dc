"""Lines of the last minutes: the lateness against its objective, and the tasks a second, in and out.

The figures are those of the holders' snapshots. A point stands for twenty seconds; with several shards it has the
lateness of the worst, and the sum of the tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.safestring import SafeString, mark_safe

from celery_wheel.engine.stats import SPAN_MS, SPANS

#: The drawing's units; CSS stretches it.
WIDTH, HEIGHT = SPANS - 2, 40


@dataclass(frozen=True, slots=True)
class Minutes:
    """The last ten minutes, a value for each whole span; None where a span has no value."""

    begins_ms: range
    accepted: list[float | None]  #: a second
    dispatched: list[float | None]
    p50_ms: list[int | None]
    p99_ms: list[int | None]

    @property
    def known(self) -> bool:
        return any(value is not None for value in self.dispatched)


def minutes_of(snapshots: Iterable[Mapping[str, Any] | None], now_ms: int) -> Minutes:
    """Return the last minutes of the holders together."""
    present_ms = now_ms - now_ms % SPAN_MS
    begins_ms = range(present_ms - (SPANS - 1) * SPAN_MS, present_ms, SPAN_MS)
    accepted, dispatched = Counter[int](), Counter[int]()
    late: tuple[dict[int, int], dict[int, int]] = {}, {}
    for snapshot in snapshots:
        for at_ms, one_in, one_out, *lateness in (snapshot or {}).get("recent", ()):
            accepted[at_ms] += one_in
            dispatched[at_ms] += one_out
            for worst, value_ms in zip(late, lateness, strict=True):
                if value_ms is not None and value_ms >= worst.get(at_ms, 0):
                    worst[at_ms] = value_ms
    return Minutes(
        begins_ms=begins_ms,
        accepted=[accepted[at] * 1_000 / SPAN_MS if at in accepted else None for at in begins_ms],
        dispatched=[dispatched[at] * 1_000 / SPAN_MS if at in dispatched else None for at in begins_ms],
        p50_ms=[late[0].get(at) for at in begins_ms],
        p99_ms=[late[1].get(at) for at in begins_ms],
    )


def draw_lines(top: float, lines: Mapping[str, Sequence[float | None]], limit: float | None = None) -> SafeString:
    """Return the SVG of lines by the name of their class, over an axis from 0 to ``top``, and of a limit up to it."""
    drawn = "".join(f'<path class="wheel-line-{name}" d="{_path(values, top)}"/>' for name, values in lines.items())
    at = None if limit is None or limit > top else HEIGHT * (1 - limit / top)
    line = "" if at is None else f'<path class="wheel-limit" d="M0 {at:.1f}H{WIDTH}"/>'
    return mark_safe(  # noqa: S308 - names are this package's, all else are numbers
        f'<svg class="wheel-spark" aria-hidden="true" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none">'
        f"{line}{drawn}</svg>"
    )


def _path(values: Sequence[float | None], top: float) -> str:
    """Return a path that breaks off where a value is missing; a value alone is a short line."""
    steps, joined = [], False
    for place, value in enumerate(values):
        if value is not None:
            steps.append(f"{'L' if joined else 'M'}{place} {HEIGHT * (1 - min(1, value / top)):.1f}")
            steps += [] if joined else ["h.01"]
        joined = value is not None
    return "".join(steps)
