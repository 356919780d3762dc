"""A measured value, with a target or the value of another system to judge it by."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True, frozen=True)
class Figure:
    bench: str
    name: str
    value: float
    unit: str
    yardstick: str = ""  #: the system that the value is compared with
    against: float | None = None  #: its value, in the same unit
    target: float | None = None
    less_is_better: bool = False

    @property
    def ratio(self) -> float | None:
        """The factor by which the value is better than the yardstick: above 1 is better, with every unit."""
        if self.against is None or not self.value or not self.against:
            return None
        return self.against / self.value if self.less_is_better else self.value / self.against

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None without a target."""
        if self.target is None:
            return None
        return self.value <= self.target if self.less_is_better else self.value >= self.target

    @property
    def aim(self) -> str:
        sign = "≤" if self.less_is_better else "≥"
        return "" if self.target is None else f"{sign if self.met else 'missed:'} {number(self.target)}"

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "ratio": self.ratio, "met": self.met}


def number(value: float | None) -> str:
    """Return the value with three significant digits or more; empty for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
