"""``python -m tests.benchmarks.against CHECKOUT [names…] [--rows N]``: this checkout's figures beside another's.

Each checkout is measured three times by its own code, alternately; a value is the median of the three.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.figure import Figure, print_figures


def measure(checkout: Path, arguments: list[str]) -> list[dict]:
    with tempfile.NamedTemporaryFile() as found:
        command = [sys.executable, "-m", "tests.benchmarks", *arguments, "--json", found.name]
        subprocess.run(command, cwd=checkout, check=True, stdout=subprocess.DEVNULL)
        return json.loads(Path(found.name).read_bytes())["figures"]


if __name__ == "__main__":
    checkouts, arguments = (Path.cwd(), Path(sys.argv[1]).resolve()), sys.argv[2:] or ["spine"]
    turns = [[measure(each, arguments) for each in checkouts] for _ in range(3)]
    figures = []
    for same in zip(*(run for turn in turns for run in turn), strict=True):  # ours, theirs, ours, theirs, …
        assert len({one["name"] for one in same}) == 1, f"the two have different figures: {same[:2]}"
        ours, theirs = (statistics.median(one["value"] for one in same[side::2]) for side in (0, 1))
        what = same[0]["bench"], same[0]["name"], ours, same[0]["unit"], checkouts[1].name, theirs
        figures.append(Figure(*what, less_is_better=same[0]["less_is_better"]))
    print_figures(figures)
