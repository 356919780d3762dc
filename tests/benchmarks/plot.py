"""Plots of figures, where matplotlib is installed (the extra ``spark`` has it)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

#: Series → its points.
Lines = Mapping[str, Sequence[tuple[float, float]]]

PLOTS = Path(__file__).parents[2] / ".run" / "plots"


def save(name: str, panels: Mapping[str, tuple[str, str, Lines]]) -> None:
    """Write a picture with a panel for each title → labels of x and y, lines; both axes are logarithmic."""
    try:
        from matplotlib import use
        from matplotlib.figure import Figure
    except ImportError:
        print(f"{name}: no plot without matplotlib (pip install 'celery-wheel[spark]')", file=sys.stderr)
        return
    use("agg")
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(6 * columns, 4.5 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for axis, (title, (x, y, lines)) in zip(axes, panels.items(), strict=True):
        for label, points in lines.items():
            axis.loglog(*zip(*sorted(points), strict=True), marker="o", label=label)
        axis.set(title=title, xlabel=x, ylabel=y)
        axis.grid(visible=True, which="major", alpha=0.3)
        axis.legend()
    PLOTS.mkdir(parents=True, exist_ok=True)
    figure.savefig(PLOTS / f"{name}.png", dpi=120)
    print(f"plot: {PLOTS / name}.png", file=sys.stderr)
