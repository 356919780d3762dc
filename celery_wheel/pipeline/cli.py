"""``celery-wheel-pipeline JOB …``, which is ``python -m celery_wheel.pipeline JOB …``.

::

    --json     the summary as one JSON object on stdout; else words. Progress is on stderr
    --master   local[2], spark://…, yarn: where Spark runs; --remote sc://… a Spark Connect server; without: as
               spark-submit says, else this machine

Exit codes: 0 done; 1 it could not be done, or (``reconcile``) it found what must not be; 2 the command line makes no
sense; 130 it was stopped by Ctrl-C.

An error is one line. Java writes to stderr what it likes, sixty lines for one wrong column, so a Java that is started
here has a file for its stderr: an error names it and leaves it, and else it is removed. Under spark-submit Java runs
already, and its output is where you have put it.
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

from celery_wheel.errors import SettingError, WheelError
from celery_wheel.pipeline.jobs import JOBS
from celery_wheel.pipeline.summary import Summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Names of pyspark's own loggers, which repeat an error as JSON of a page.
PYSPARK_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
LONGEST = 500
#: As shells have it: 128, and the number of the signal.
STOPPED = 130
_OF_WORKER = "An exception was thrown from the Python worker"
_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception): .").match
_JAVA_CLASS = re.compile(r"^: (?:[\w.$]+: )?")


class Jobs(click.Group):
    """A job's module is imported when it is asked for: the help needs no Spark."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(JOBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return command(name) if name in JOBS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Jobs"):
            formatter.write_dl(list(JOBS.items()))


@click.group(cls=Jobs, name="celery-wheel-pipeline")
def main() -> None:
    """Jobs on Spark over what is scheduled, left and was executed."""


def command(name: str) -> click.Command:
    """The command of a job."""
    try:
        job = import_module(f"celery_wheel.pipeline.jobs.{name}")
    except ImportError as error:
        if (error.name or "").split(".")[0] == "celery_wheel":
            raise
        raise click.ClickException(f"{error}; run: pip install 'celery-wheel[spark]'") from None

    def call(as_json: bool, master: str | None, remote: str | None, **given: Any) -> None:
        _run(job, as_json, master, remote, given)

    for option in reversed(job.OPTIONS):
        call = option(call)
    call = click.option("--remote", metavar="URL", help="A Spark Connect server: sc://host:15002.")(call)
    call = click.option("--master", metavar="URL", help="Where Spark runs: local[2], spark://host:7077, yarn.")(call)
    call = click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")(call)
    return click.command(name, help=job.HELP)(call)


def _run(job: Any, as_json: bool, master: str | None, remote: str | None, given: Mapping[str, Any]) -> None:
    log = SparkLog()
    try:
        with log, progress(job.NAME) as tell:
            tell("starting Spark")
            spark = _session(master, remote, log)
            summary: Summary = job.run(spark, given, tell)
    except KeyboardInterrupt:
        click.echo(f"Stopped. The same {job.NAME} again goes on, or begins anew: nothing is there by half.", err=True)
        click.get_current_context().exit(STOPPED)
    except SettingError as error:
        raise click.UsageError(str(error)) from error
    except (WheelError, OSError) as error:
        raise click.ClickException(_line(error)) from error
    except Exception as error:
        if not _is_sparks(error):
            raise
        raise click.ClickException(f"{_line(error)}{log.kept()}") from error
    finally:
        log.close()
    click.echo(json.dumps(summary.as_dict(), ensure_ascii=False, default=str) if as_json else "\n".join(summary.words))
    if not as_json and summary.facts.get("picture"):
        click.echo(f"picture: {summary.facts['picture']}")
    if summary.findings:
        click.get_current_context().exit(1)


def _session(master: str | None, remote: str | None, log: SparkLog) -> SparkSession:
    from celery_wheel.pipeline.session import session

    for name in PYSPARK_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_is_no_interrupt)
    with log.taken():
        spark = session(master, remote)
    # PySpark's own asks Java to end its jobs, by the very connection whose answer is being waited for, and ends in two
    # tracebacks. Java ends with this process, and a remote one is told.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return spark


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """The bridge to Java logs each of them with a traceback, under nobody's name."""
    return record.exc_info is None or record.exc_info[0] is not KeyboardInterrupt


def _is_sparks(error: Exception) -> bool:
    """Of Spark, of the bridge to its Java, or of a connection to a remote one."""
    return any(kind.__module__.split(".")[0] in {"pyspark", "py4j", "grpc"} for kind in type(error).__mro__)


def _line(error: Exception) -> str:
    """The line that says something: of ours within a worker that, of Java's that without the names of its classes."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("celery_wheel.") and ": " in line]
    if ours:
        found = ours[-1].split(": ", 1)[1]
    elif len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        found = _JAVA_CLASS.sub("", lines[1])
    elif lines and lines[0].startswith(_OF_WORKER) and (raised := [line for line in lines if _RAISED(line)]):
        found = raised[-1]  # the end of a traceback that is not ours
    else:
        found = lines[0] if lines else type(error).__name__
    return found if len(found) <= LONGEST else f"{found[:LONGEST]}…"


@contextmanager
def progress(name: str) -> Iterator[Callable[[str], None]]:
    """A line that moves, on a terminal; else a line a step."""
    began = time.monotonic()
    if not sys.stderr.isatty():
        yield lambda step: click.echo(f"{name}: {step} ({time.monotonic() - began:.0f} s)", err=True)
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    # A copy of stderr: what Java is given in its place is not the terminal.
    with os.fdopen(os.dup(sys.stderr.fileno()), "w") as terminal:
        columns = (SpinnerColumn(), TextColumn(f"{name}: {{task.description}}"), TimeElapsedColumn())
        with Progress(*columns, console=Console(file=terminal, force_terminal=True), transient=True) as shown:
            task = shown.add_task("", total=None)
            yield lambda step: shown.update(task, description=step)


class SparkLog:
    """What a Java that is started within ``taken`` writes to stderr goes to a file, for as long as it lives."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._keep = False

    def __enter__(self) -> SparkLog:
        return self

    def __exit__(self, *_: object) -> None:
        sys.stderr.flush()

    @contextmanager
    def taken(self) -> Iterator[None]:
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

    def kept(self) -> str:
        """For the end of an error: where more is said."""
        if self._path is None or not self._path.stat().st_size:
            return ""
        self._keep = True
        return f" (Spark's own words: {self._path})"

    def close(self) -> None:
        if self._path is not None and not self._keep:
            with suppress(OSError):
                self._path.unlink()
