"""``make demo-pipeline``: a year of real flights through the data pipeline, with everything it needs.

The processes are those of ``make demo``, and beside them ``manage.py fly_year``, which has Spark: with it all end.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from demo.__main__ import Demo, run
from demo.stack import PROJECT

RUN_DIR = PROJECT.parent / ".run" / "pipeline"
MIN_SECONDS = 10  #: a day in less is one heap


class PipelineDemo(Demo):
    INTERRUPTED = 1  #: nothing is proved by a part

    def work(self) -> int:
        arguments = [f"--date={self.options.date}", f"--seconds={self.options.day_seconds:g}"]
        flow = self.stack.manage("pipeline", "fly_year", *arguments, to_log=False)
        self.until(lambda: flow.popen.poll() is not None, "the pipeline", math.inf)
        self.stack.processes.stop("pipeline")
        return 1 if flow.popen.returncode else 0


def options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo.pipeline", description=__doc__)
    parser.add_argument("--seconds", dest="day_seconds", type=float, default=60.0, help="in which the day passes")
    parser.add_argument("--date", type=date.fromisoformat, default=date(2013, 11, 3), help="a day of 2013, to replay")
    parser.add_argument("--port", type=int, help="of the board")
    parser.add_argument("--run-dir", type=Path, default=RUN_DIR, help="where all files of the run go")
    parser.set_defaults(seconds=None)  # of the whole demo: it has no limit
    found = parser.parse_args(argv)
    found.run_dir = found.run_dir.resolve()
    if found.day_seconds < MIN_SECONDS:
        parser.error(f"seconds must be at least {MIN_SECONDS}, got {found.day_seconds:g}")
    return found


if __name__ == "__main__":
    sys.exit(run(PipelineDemo, options(sys.argv[1:])))
