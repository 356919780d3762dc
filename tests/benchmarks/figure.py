"""A measured value, and beside it what it is to be judged by: a target of ours, or somebody else's value."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rich import box
from rich.table import Table


@dataclass(slots=True, frozen=True)
class Figure:
    bench: str
    name: str
    value: float
    unit: str
    yardstick: str = ""  #: what the value is compared with
    against: float | None = None  #: its value, in the same unit
    target: float | None = None
    less_is_better: bool = False

    @property
    def ratio(self) -> float | None:
        """How many times better than the yardstick: above 1 is better, whichever way the unit goes."""
        if self.against is None or not self.value or not self.against:
            return None
        return self.against / self.value if self.less_is_better else self.value / self.against

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None where there is none."""
        if self.target is None:
            return None
        return self.value <= self.target if self.less_is_better else self.value >= self.target

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "ratio": self.ratio, "met": self.met}


def table(figures: list[Figure], title: str) -> Table:
    """All figures in one table, a section a bench."""
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, right in (
        ("bench", False),
        ("what", False),
        ("value", True),
        ("unit", False),
        ("yardstick", False),
        ("its value", True),
        ("times better", True),
        ("target", True),
    ):
        shown.add_column(heading, justify="right" if right else "left", no_wrap=heading != "what")
    for at, figure in enumerate(figures):
        last = at + 1 == len(figures) or figures[at + 1].bench != figure.bench
        shown.add_row(*_cells(figure), end_section=last)
    return shown


def _cells(figure: Figure) -> tuple[str, ...]:
    target = ""
    if figure.target is not None:
        colour, sign = ("green", "≤" if figure.less_is_better else "≥") if figure.met else ("red", "missed:")
        target = f"[{colour}]{sign} {_number(figure.target)}[/]"
    return (
        figure.bench,
        figure.name,
        _number(figure.value),
        figure.unit,
        figure.yardstick,
        "" if figure.against is None else _number(figure.against),
        "" if figure.ratio is None else f"{figure.ratio:.2f}",
        target,
    )


def _number(value: float) -> str:
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"
