"""The life of a task, drawn to scale: a bar of its stages over a linear axis of time, with a mark for each event.

::

    ●─────────────────────────────────▲──●
    |░░ broker ░|▒▒▒▒▒ pending ▒▒▒▒▒▒▒|█|        the last event, or the present, is the end of the axis
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.utils.functional import Promise

from django_wheel.drawing.charts import TimeAxis

#: Width of a mark in percents of the axis: of the events that would cover each other, the last one has the mark.
MARK = 2


@dataclass(frozen=True, slots=True)
class TimelineStage:
    """A stage of a life; its bar has a colour by the key. Without a label it has no bar: the life is over."""

    key: str
    label: Promise | str


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """``stage`` is the stage that the event begins, if any. ``ahead``: it has not happened yet."""

    at_ms: int
    kind: str
    label: str
    text: str = ""
    actor: str = ""
    stage: TimelineStage | None = None
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """``after_ms``: the time since the row before; None in the first row."""

    event: TimelineEvent
    after_ms: int | None


@dataclass(frozen=True, slots=True)
class TimelineBar:
    x: float
    width: float
    stage: TimelineStage
    from_ms: int
    to_ms: int

    @property
    def length_ms(self) -> int:
        return self.to_ms - self.from_ms


@dataclass(frozen=True, slots=True)
class TimelineMark:
    x: float
    event: TimelineEvent


@dataclass(frozen=True, slots=True)
class Timeline:
    axis: TimeAxis
    now: float | None  #: the place of the present; None where it is beyond the axis
    rows: Sequence[TimelineRow]
    bars: Sequence[TimelineBar]
    marks: Sequence[TimelineMark]

    @property
    def stages(self) -> list[tuple[TimelineStage, int]]:
        """Each stage once, with the sum of its lengths."""
        lengths: dict[TimelineStage, int] = {}
        for bar in self.bars:
            lengths[bar.stage] = lengths.get(bar.stage, 0) + bar.length_ms
        return list(lengths.items())


def timeline(events: Iterable[TimelineEvent], now_ms: int, *, goes_on: bool) -> Timeline:
    """Return the drawing of events.

    Args:
        goes_on: the task is pending, so its axis includes the present, and its last stage goes on.
    """
    ordered = sorted(events, key=lambda one: one.at_ms)
    end_ms = max([one.at_ms for one in ordered] + [now_ms] * goes_on)
    axis = TimeAxis(ordered[0].at_ms, max(end_ms, ordered[0].at_ms + 1))
    begun = [(one.at_ms, one.stage) for one in ordered if one.stage is not None and not one.ahead]
    ends = [at_ms for at_ms, _ in begun[1:]] + [now_ms if goes_on else end_ms]
    bars = [
        TimelineBar(axis.at(at_ms), round(axis.at(until_ms) - axis.at(at_ms), 2), stage, at_ms, until_ms)
        for (at_ms, stage), until_ms in zip(begun, ends, strict=True)
        if until_ms > at_ms and stage.label
    ]
    before = [None, *ordered]
    return Timeline(
        axis,
        axis.at(now_ms) if goes_on else None,
        [
            TimelineRow(one, None if last is None else one.at_ms - last.at_ms)
            for last, one in zip(before, ordered, strict=False)
        ],
        bars,
        list({round(axis.at(one.at_ms) / MARK): TimelineMark(axis.at(one.at_ms), one) for one in ordered}.values()),
    )
