"""Jobs of the data pipeline, one after the other in one Spark, each by the command line that you would give.

Spark starts with the first of them and stays: five to fifteen seconds that no other has to wait.
"""

import io
import json
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import click
from django.core.management.base import CommandError
from kombu.utils.url import maybe_sanitize_url

from celery_wheel.pipeline.cli import main

#: A Java that is to live for two minutes does not gain by compiling well: of two cores it would use up one for that.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"

ALL, FIRST, LAST = slice(None), slice(4), slice(-1, None)


def prepare(folder: Path) -> None:
    """Before Spark starts: a Java for a short life, whose temporary files go into the folder, also if it is killed."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = os.environ["SPARK_LOCAL_DIRS"] = str(temporary)
    os.environ.setdefault("JDK_JAVA_OPTIONS", f'{SHORT_LIVED} "-Djava.io.tmpdir={temporary}"')


class Jobs:
    """``folder``: each job has its results in one of its own there. ``here``: paths are shown as seen from it."""

    def __init__(self, folder: Path, store: str, here: Path) -> None:
        self.folder = folder
        self.store = store
        self._here = f"{here}{os.sep}"

    def run(self, job: str, *options: object, output: str | None = None, told: slice = ALL) -> dict[str, Any]:
        """The summary of a job; ``told`` are those of its lines that are shown."""
        arguments = [job, *map(str, options), "--output", str(self.folder / (output or job))]
        self.tell("$ " + shlex.join(["celery-wheel-pipeline", *arguments]))
        with self.timed() as lines:
            found = self._summary(arguments)
            lines += found["words"][told]
        return found

    @contextmanager
    def timed(self) -> Iterator[list[str]]:
        """Tells what is put into the list, with the time that it took."""
        began, lines = time.monotonic(), list[str]()
        yield lines
        first, *others = lines
        self.tell(f"{time.monotonic() - began:6.1f} s  {first}", *(f"          {line}" for line in others), "")

    def tell(self, *lines: str) -> None:
        text = "\n".join(lines).replace(self.store, maybe_sanitize_url(self.store)).replace(self._here, "")
        print(text, flush=True)

    def _summary(self, arguments: list[str]) -> dict[str, Any]:
        said = io.StringIO()
        with (self.folder / "jobs.log").open("a") as progress, redirect_stderr(progress), redirect_stdout(said):
            try:
                main.main([*arguments, "--json"], prog_name="celery-wheel-pipeline", standalone_mode=False)
            except click.ClickException as error:
                raise CommandError(f"{arguments[0]}: {error.format_message()}", returncode=1) from error
        found: dict[str, Any] = json.loads(said.getvalue())
        return found
