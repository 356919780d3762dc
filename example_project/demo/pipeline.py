"""``make demo-pipeline``: a year of real flights through the data pipeline.

The processes are those of ``make demo`` and ``manage.py fly_year``, which runs the jobs on Spark and ends the demo.
"""

import argparse
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from demo.__main__ import Demo, run, seconds, with_run_dir
from demo.stack import PROJECT

RUN_DIR = PROJECT.parent / ".run" / "pipeline"


class PipelineDemo(Demo):
    INTERRUPTED = 1  #: a part of the run proves nothing

    def work(self) -> int:
        arguments = [f"--date={self.options.date}", f"--seconds={self.options.seconds:g}"]
        jobs = self.stack.manage("pipeline", "fly_year", *arguments, to_log=False)
        self.finish(jobs)
        return 1 if jobs.popen.returncode else 0


def options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo.pipeline", description=__doc__)
    parser.add_argument("--seconds", type=seconds, default=60.0, help="let the day pass in so many seconds, default 60")
    parser.add_argument("--date", type=date.fromisoformat, default=date(2013, 11, 3), help="a day of 2013, to replay")
    parser.add_argument("--port", type=int, help="port of the web page")
    parser.add_argument("--run-dir", type=Path, default=RUN_DIR, help="folder of the run's files")
    return with_run_dir(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(run(PipelineDemo, options(sys.argv[1:])))
