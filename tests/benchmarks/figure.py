"""A measured value, with a target or the value of another system to judge it by; and the table of such values."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from celery_wheel.cli.doctor import number as digits
from celery_wheel.console.output import Column, GrowingTable
from celery_wheel.operations.bench import Pace


def number(value: float | None) -> str:
    return "" if value is None else digits(value)


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


COLUMNS: tuple[Column[Figure], ...] = (
    Column("bench", lambda one: one.bench),
    Column("what", lambda one: one.name),
    Column("value", lambda one: number(one.value), "right"),
    Column("unit", lambda one: one.unit),
    Column("yardstick", lambda one: one.yardstick),
    Column("its value", lambda one: number(one.against), "right"),
    Column("times better", lambda one: number(one.ratio), "right"),
    Column("target", lambda one: one.aim, "right"),
)


def print_figures(figures: Sequence[Figure]) -> None:
    """Print all figures in one table, without the columns that are empty for all."""
    GrowingTable([one for one in COLUMNS if any(map(one.value, figures))]).print(figures)


def pace(work: Callable[[], object], count: int) -> Pace:
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return Pace(count, time.perf_counter() - began, time.process_time() - cpu)
