"""What the jobs' options have in common, and how each is read: refused in words where it makes no sense.

::

    where to read    --store URL | --input PATH       where to write   --output DIR
    which rows       --from --to                      objectives       emails=500ms
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

from celery_wheel.cli.options import Instant, Length
from celery_wheel.pipeline.source.options import store_url

Option = Callable[[Any], Any]

store: Option = click.option(
    "--store", metavar="URL", help="Store to read, as wheel_store has it; default: environment CELERY_WHEEL_STORE."
)


def store_of(given: str | None) -> str:
    """What ``--store`` says, or the environment of this process: a remote Spark has another. Raises SettingError."""
    return store_url({"url": given or ""})


given_parquet: Option = click.option("--input", metavar="PATH", help="Parquet to read instead of a store.")
output: Option = click.option("--output", metavar="DIR", help="Folder for tables, picture and summary.json.")
span: tuple[Option, ...] = (
    click.option("--from", "from_ms", type=Instant(), help="From this instant on: ISO 8601, Unix ms, -1h."),
    click.option("--to", "to_ms", type=Instant(), help="Before this instant."),
)
history_options: tuple[Option, ...] = (store, given_parquet, output, *span)


def milliseconds(text: str, ctx: click.Context, param: click.Parameter) -> int:
    """500ms, 5s, 1m30s; a number alone is seconds."""
    return round(Length().convert(text, param, ctx) * 1_000)


def objectives(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    """NAME=LENGTH to milliseconds by name."""
    found: dict[str, int] = {}
    for value in values:
        name, sign, length = value.rpartition("=")
        if not sign or not name:
            raise click.BadParameter(f"must be NAME=LENGTH, like emails=500ms or *=5s, got {value!r}", ctx, param)
        if name in found:
            raise click.BadParameter(f"must name each once, got {name!r} twice", ctx, param)
        found[name] = milliseconds(length, ctx, param)
    return found


_RATE = re.compile(r"(?:(.+)=)?(\d+(?:\.\d+)?)/(s|m|h)").fullmatch
_A_SECOND = {"s": 1, "m": 60, "h": 3_600}


def rates(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, float]:
    """[QUEUE=]NUMBER/s to tasks a second by queue; without a queue it is ``*``, all others."""
    found: dict[str, float] = {}
    for value in values:
        read = _RATE(value)
        if not read or float(read[2]) == 0:
            raise click.BadParameter(f"must be like 500/s, emails=100/s or reports=30/m, got {value!r}", ctx, param)
        found[read[1] or "*"] = float(read[2]) / _A_SECOND[read[3]]
    return found


def numbers(least: int) -> Callable[[click.Context, click.Parameter, str], list[int]]:
    """1,10,100 to whole numbers."""

    def read(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
        parts = [part.strip() for part in value.split(",")]
        if not all(part.isdecimal() and int(part) >= least for part in parts):
            raise click.BadParameter(f"must be whole numbers from {least} on, like 1,10,100, got {value!r}", ctx, param)
        return sorted({int(part) for part in parts})

    return read
