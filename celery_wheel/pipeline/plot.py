"""The pictures of the jobs: matplotlib figures from plain rows, without Spark, a screen or state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from matplotlib.colors import LogNorm
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

Row = Mapping[str, Any]


def lateness(rows: Sequence[Row]) -> Figure:
    """Draw p99 by task and hour: dark is early; a cross marks an hour that missed its objective."""
    lines = sorted({_line(row) for row in rows})
    hours = sorted({row["hour"] for row in rows})
    if not lines:
        return _empty("no task was dispatched in this time")
    rows_of, columns_of = {line: y for y, line in enumerate(lines)}, {hour: x for x, hour in enumerate(hours)}
    grid = [[float("nan")] * len(hours) for _ in lines]
    crosses = []
    for row in rows:
        if (y := rows_of.get(_line(row))) is not None:
            x = columns_of[row["hour"]]
            grid[y][x] = max(row["p99_ms"], 1)
            if row["missed"]:
                crosses.append((x, y))
    figure, axes = _figure(max(8, min(len(hours) / 6, 24)), 2 + len(lines) / 4)
    image = axes.imshow(grid, aspect="auto", norm=LogNorm(), cmap="viridis", interpolation="nearest")
    figure.colorbar(image, label="p99 of lateness, ms")
    axes.plot(*zip(*crosses, strict=True), "x", color="red", markersize=5) if crosses else None
    axes.set_yticks(range(len(lines)), lines)
    step = max(1, len(hours) // 12)
    axes.set_xticks(range(0, len(hours), step), [f"{hour:%m-%d %Hh}" for hour in hours[::step]], rotation=45)
    axes.set_title("lateness by task and hour (UTC)" + ("; x: missed its objective" if crosses else ""))
    return figure


def forecast(minutes: Sequence[Row], herds: Sequence[Row]) -> Figure:
    """Draw the number of tasks due in each minute, a line for each queue, and mark the herds."""
    if not minutes:
        return _empty("no task is pending")
    queues: dict[str, list[Row]] = defaultdict(list)
    for row in minutes:
        queues[str(row["queue"])].append(row)
    figure, axes = _figure(12, 5)
    for queue, found in sorted(queues.items()):
        points = sorted((row["minute"], row["n"]) for row in found)
        axes.plot(*zip(*points, strict=True), ".-", lw=0.8, ms=2, label=queue)
    _finish(axes, herds)
    axes.set(yscale="log", ylabel="tasks due a minute", title="pending tasks by due time (UTC)")
    return figure


def load(rows: Sequence[Row], herds: Sequence[Row], unit: str) -> Figure:
    """Draw the tasks due a minute or an hour, before and after a load, with the herds that it makes."""
    if not rows:
        return _empty("no task is pending, before or after the load")
    figure, axes = _figure(12, 5)
    at = [row["at"] for row in rows]
    axes.fill_between(at, [row["after"] for row in rows], step="post", alpha=0.4, label="with these rows")
    axes.fill_between(at, [row["before"] for row in rows], step="post", alpha=0.7, label="pending before")
    _finish(axes, herds)
    title = "pending tasks by due time, before and after the load (UTC)"
    axes.set(yscale="symlog", ylabel=f"tasks due {'an' if unit == 'hour' else 'a'} {unit}", title=title)
    return figure


def tune(rows: Sequence[Row]) -> Figure:
    """Draw cascades a task by tick and wheel size, with the buckets; a frame marks the recommended shape."""
    ticks, sizes = sorted({row["tick_ms"] for row in rows}), sorted({row["wheel_size"] for row in rows})
    figure, axes = _figure(3 + len(sizes) * 1.3, 2 + len(ticks) * 0.9)
    grid = [[0.0] * len(sizes) for _ in ticks]
    for row in rows:
        y, x = ticks.index(row["tick_ms"]), sizes.index(row["wheel_size"])
        grid[y][x] = row["cascades_a_task"]
        text = f"{row['cascades_a_task']:.2f}\n{row['buckets']:,} buckets"
        axes.text(x, y, text, ha="center", va="center", fontsize=8, color="black", bbox={"fc": "white", "alpha": 0.6})
        if row["recommended"]:
            axes.plot(x, y, "s", ms=48, mfc="none", mec="red", mew=2)
    figure.colorbar(axes.imshow(grid, aspect="auto", cmap="viridis_r"), label="cascades a task")
    axes.set_yticks(range(len(ticks)), [f"{tick} ms" for tick in ticks])
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.set(xlabel="wheel size", ylabel="tick", title="cascades before dispatch (red: recommended)")
    return figure


def reconcile(days: Sequence[Row]) -> Figure:
    """Draw the findings a day, a bar a kind."""
    if not days:
        return _empty("no finding: each scheduled task ran once, and in time")
    kinds, at = sorted({row["finding"] for row in days}), sorted({str(row["day"]) for row in days})
    figure, axes = _figure(max(6, len(at) * 0.8), 4)
    bottom = [0] * len(at)
    for kind in kinds:
        counts = [sum(row["n"] for row in days if row["finding"] == kind and str(row["day"]) == day) for day in at]
        axes.bar(at, counts, bottom=bottom, label=kind)
        bottom = [low + count for low, count in zip(bottom, counts, strict=True)]
    axes.tick_params(axis="x", rotation=45)
    axes.legend()
    axes.set_title("findings by the day on which the task was due (UTC)")
    return figure


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _line(row: Row) -> str:
    task, queue = str(row["task"]), str(row["queue"])
    return f"{task[-50:]} ({queue[-20:]})"


def _finish(axes: Any, herds: Sequence[Row]) -> None:
    """Add the herds, the scale of dates and the legend."""
    if herds:
        axes.plot([row["second"] for row in herds], [row["n"] for row in herds], "rv", label="herd: due in one second")
    axes.legend()
    locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]


def _empty(reason: str) -> Figure:
    figure = Figure(figsize=(6, 1.5))
    figure.text(0.5, 0.5, f"{reason}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC", ha="center", va="center")
    return figure
