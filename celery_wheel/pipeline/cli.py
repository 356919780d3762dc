"""``celery-wheel-pipeline JOB …``, which is ``python -m celery_wheel.pipeline JOB …``.

Exit codes: 0 done; 1 the job failed, or (``reconcile``) it has findings; 2 wrong usage; 130 stopped by Ctrl-C; 143 by
SIGTERM. The options are checked before Spark starts, which takes seconds. Progress goes to stderr. An error is one
line. A Java that is started here has its stderr in a file, which an error names and keeps.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from celery_wheel.console.parameters import all_of
from celery_wheel.errors import SettingError, WheelError
from celery_wheel.pipeline.jobs import JOBS, JobSummary
from celery_wheel.pipeline.session import is_remote
from celery_wheel.pipeline.spark_errors import wheel_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_ERROR = 500
#: The exit codes of shells: 128 and the number of the signal.
INTERRUPTED, TERMINATED = 130, 143
#: Seconds after which a step is told again.
REPEAT_S = 30.0
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception): .").match
_JAVA_CLASS = re.compile(r"^: (?:[\w.$]+: )?")


class Terminated(KeyboardInterrupt):
    """SIGTERM: the job ends as after Ctrl-C, and removes its files."""


class JobGroup(click.Group):
    """The group of the jobs. A job's module is imported when the job is called: the list needs no Spark."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(JOBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return make_command(name) if name in JOBS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Jobs"):
            formatter.write_dl(list(JOBS.items()))


@click.group(cls=JobGroup, name="celery-wheel-pipeline")
def main() -> None:
    """Run a job on Spark over scheduled, dispatched and executed tasks."""


def make_command(name: str) -> click.Command:
    try:
        job = import_module(f"celery_wheel.pipeline.jobs.{name}")
    except ImportError as error:
        if (error.name or "").split(".")[0] == "celery_wheel":
            raise
        raise click.ClickException(f"{error}; run: pip install 'celery-wheel[spark]'") from None

    def call(as_json: bool, master: str | None, remote: str | None, **options: Any) -> None:
        _run(job, as_json, master, remote, options)

    options = all_of(
        click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object."),
        click.option("--master", metavar="URL", help="Run on a cluster: local[2], spark://host:7077, yarn."),
        click.option("--remote", metavar="URL", help="Run on a Spark Connect server: sc://host:15002."),
        *job.OPTIONS,
    )
    return click.command(name, help=JOBS[name])(options(call))


def _run(job: Any, as_json: bool, master: str | None, remote: str | None, options: Mapping[str, Any]) -> None:
    log = SparkLog()
    try:
        with raising_sigterm(), progress_line(job.NAME) as progress:
            job.check(options)
            progress("starting Spark")
            spark = _start_session(master, remote, log)
            with repeating(progress, lambda: "" if is_remote(master, remote) else _parts(spark)) as tell:
                summary: JobSummary = job.run(spark, options, tell)
    except KeyboardInterrupt as stop:
        click.echo(f"Stopped. Run {job.NAME} again to resume or restart it: no result is incomplete.", err=True)
        click.get_current_context().exit(TERMINATED if isinstance(stop, Terminated) else INTERRUPTED)
    except SettingError as error:
        raise click.UsageError(str(error)) from error
    except (WheelError, OSError) as error:
        raise click.ClickException(_one_line(error)) from error
    except Exception as error:
        if not any(kind.__module__.split(".")[0] in {"pyspark", "py4j", "grpc"} for kind in type(error).__mro__):
            raise
        raise click.ClickException(f"{_one_line(error)}{log.keep()}") from error
    finally:
        log.close()
    click.echo(json.dumps(summary.as_dict(), ensure_ascii=False, default=str) if as_json else "\n".join(summary.words))
    if not as_json and summary.facts.get("picture"):
        click.echo(f"picture: {summary.facts['picture']}")
    if summary.findings:
        click.get_current_context().exit(1)


@contextmanager
def raising_sigterm() -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _start_session(master: str | None, remote: str | None, log: SparkLog) -> SparkSession:
    from celery_wheel.pipeline.session import session

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):  # they repeat an error as a page of JSON
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_is_not_interrupt)
    with log.capture_stderr():
        spark = session(master, remote)
    # PySpark's own handler asks Java to end its jobs, over a connection that waits for an answer, and ends in two
    # tracebacks. Java ends with this process, and the client of Spark Connect interrupts a remote session.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return spark


def _is_not_interrupt(record: logging.LogRecord) -> bool:
    """Drop the tracebacks of KeyboardInterrupt, which the bridge to Java logs to the root logger."""
    return not record.exc_info or not issubclass(record.exc_info[0] or Exception, KeyboardInterrupt)


def _one_line(error: Exception) -> str:
    """Return the line of an error that names the cause: our own in a worker, or Java's without its class names."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if ours := wheel_error(error):
        line = str(ours)
    elif len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        line = _JAVA_CLASS.sub("", lines[1])
    elif (
        lines
        and lines[0].startswith("An exception was thrown from the Python worker")
        and (raised := [line for line in lines if _EXCEPTION(line)])
    ):
        line = raised[-1]  # the end of a traceback of other code
    else:
        line = lines[0] if lines else type(error).__name__
    return line if len(line) <= MAX_ERROR else f"{line[:MAX_ERROR]}…"


@contextmanager
def progress_line(name: str) -> Iterator[Callable[[str], None]]:
    """Show the steps of a job on stderr: on a terminal as one moving line, else as a line a step."""
    began = time.monotonic()
    if not sys.stderr.isatty():
        yield lambda step: click.echo(f"{name}: {step} ({time.monotonic() - began:.0f} s)", err=True)
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    # A copy of stderr: while Java starts, the original is a file.
    with os.fdopen(os.dup(sys.stderr.fileno()), "w") as terminal:
        columns = (SpinnerColumn(), TextColumn(f"{name}: {{task.description}}"), TimeElapsedColumn())
        with Progress(*columns, console=Console(file=terminal, force_terminal=True), transient=True) as bar:
            task = bar.add_task("", total=None)
            yield lambda step: bar.update(task, description=step)


@contextmanager
def repeating(
    progress: Callable[[str], None], parts: Callable[[], str], every_s: float = REPEAT_S
) -> Iterator[Callable[[str], None]]:
    """Tell the step under way again every so often: a job of an hour has few steps, and each may take minutes."""
    over, last = threading.Event(), ["running"]

    def tell(step: str) -> None:
        last[0] = step
        progress(step)

    def repeat() -> None:
        while not over.wait(every_s):
            progress(last[0] + parts())

    thread = threading.Thread(target=repeat, name="progress", daemon=True)
    thread.start()
    try:
        yield tell
    finally:
        over.set()
        thread.join(1.0)  # it may ask a Java that has ended


def _parts(spark: SparkSession) -> str:
    """Return how much of the running stages is done; empty between two stages."""
    tracker = spark.sparkContext.statusTracker()
    stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number)) is not None]
    done, in_all = sum(one.numCompletedTasks for one in stages), sum(one.numTasks for one in stages)
    return f", {done:,} of {in_all:,} parts" if in_all else ""


class SparkLog:
    """A file for the stderr of a Java that starts within ``capture_stderr``, for as long as that Java lives."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._keep = False

    @contextmanager
    def capture_stderr(self) -> Iterator[None]:
        handle, path = tempfile.mkstemp(prefix="celery-wheel-spark-", suffix=".log")
        self._path, stderr = Path(path), os.dup(2)
        try:
            sys.stderr.flush()
            os.dup2(handle, 2)
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            os.close(handle)

    def keep(self) -> str:
        """Keep the file, unless it is empty, and return a reference to it for the end of an error message."""
        if self._path is None or not self._path.stat().st_size:
            return ""
        self._keep = True
        return f" (Spark's own messages: {self._path})"

    def close(self) -> None:
        if self._path is not None and not self._keep:
            with suppress(OSError):
                self._path.unlink()
