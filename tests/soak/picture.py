"""The plots of a soak: each gauge over the hours of all runs, side by side; outages are grey."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib import use
from matplotlib.figure import Figure

from tests.soak.judge import HOUR_MS
from tests.soak.ledger import Ledger
from tests.soak.load import SCHEDULERS

#: title → scale, and the names of its lines
PANELS: dict[str, tuple[float, tuple[str, ...]]] = {
    "lateness, s": (1e3, ("late median", "late 99 of 100", "late most")),
    "memory, MB": (1e6, tuple(f"rss of {name}" for name in SCHEDULERS)),
    "descriptors": (1, tuple(f"descriptors of {name}" for name in SCHEDULERS)),
    "threads": (1, tuple(f"threads of {name}" for name in SCHEDULERS)),
    "log, kB": (1e3, tuple(f"log of {name}" for name in SCHEDULERS)),
    "store, MB": (1e6, ("store bytes", "wal bytes")),
    "dead rows": (1, ("dead rows",)),
    "files of the store, sessions": (1, ("files", "sessions")),
    "messages in queues": (1, ("wheel queues", "task queue")),
}

#: Figures of many sizes.
LOGARITHMIC = ("lateness, s", "messages in queues")


def draw(ledger: Ledger, path: Path, title: str) -> None:
    use("agg")
    runs = list(_runs(ledger))
    figure = Figure(figsize=(15, 10), layout="constrained")
    figure.suptitle(f"{title}: hours of work")
    for axis, (name, (scale, lines)) in zip(figure.subplots(3, 3).flat, PANELS.items(), strict=True):
        for line in lines:
            for at, (run, began_ms, offset_ms) in enumerate(runs):
                found = ledger.read(
                    "SELECT at_ms, value FROM samples WHERE run = ? AND name = ? ORDER BY at_ms", run, line
                )
                hours = [(at_ms - began_ms + offset_ms) / HOUR_MS for at_ms, _ in found]
                colour = f"C{lines.index(line)}"
                axis.plot(
                    hours, [value / scale for _, value in found], color=colour, linewidth=0.9, label="" if at else line
                )
        for run, began_ms, offset_ms in runs:
            for from_ms, upto_ms in ledger.read(
                "SELECT from_ms, upto_ms FROM faults WHERE run = ? AND kind LIKE 'outage%'", run
            ):
                span = [(at_ms - began_ms + offset_ms) / HOUR_MS for at_ms in (from_ms, upto_ms)]
                axis.axvspan(*span, color="0.85")
        axis.set_title(name, fontsize=10)
        if name in LOGARITHMIC:
            axis.set_yscale("symlog", linthresh=0.01 if "late" in name else 10)
        else:
            axis.set_ylim(bottom=0)
        axis.grid(visible=True, alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=80)


def _runs(ledger: Ledger) -> Iterator[tuple[int, int, int]]:
    """Yield each run, its beginning, and the time of work before it."""
    offset_ms = 0
    query = "SELECT run, min(at_ms), max(at_ms) FROM samples GROUP BY run ORDER BY run"
    rows: list[Any] = ledger.read(query)
    for run, began_ms, ended_ms in rows:
        yield run, began_ms, offset_ms
        offset_ms += ended_ms - began_ms
