"""Options that jobs share, and the callbacks that parse their values.

::

    input     --store URL | --input PATH       output       --output DIR
    rows      --from --to                      objectives   emails=500ms      rates   emails=100/s
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from celery_wheel.console.parameters import DurationParameter, InstantParameter
from celery_wheel.pipeline.source.options import store_url
from celery_wheel.values.text import whole_number

Option = Callable[[Any], Any]

store_option: Option = click.option(
    "--store", metavar="URL", help="Store, as wheel_store names it; default: environment CELERY_WHEEL_STORE."
)


input_option: Option = click.option("--input", metavar="PATH", help="Parquet to read instead of a store.")
output_option: Option = click.option("--output", metavar="DIR", help="Folder for tables, picture and summary.json.")
span_options: tuple[Option, ...] = (
    click.option("--from", "from_ms", type=InstantParameter(), help="First instant: ISO 8601, Unix ms, -1h."),
    click.option("--to", "to_ms", type=InstantParameter(), help="Instant before which the rows lie."),
)
herd_option: Option = click.option(
    "--herd", "least", type=click.IntRange(2), default=100, show_default=True, help="Least number of tasks of a herd."
)


def choice_option(name: str, choices: Sequence[str], help_text: str) -> Option:
    """Return an option with some choices; the first is the default."""
    return click.option(name, type=click.Choice(choices), default=choices[0], show_default=True, help=help_text)


def duration_option(name: str, default: str, help_text: str) -> Option:
    """Return an option whose value is a duration; the job gets seconds."""
    return click.option(name, type=DurationParameter(), default=default, show_default=True, help=help_text)


history_options: tuple[Option, ...] = (store_option, input_option, output_option, *span_options)


def resolve_store(option: str | None) -> str:
    """Return the URL of ``--store``, or of this process's environment: a remote Spark has another.

    Raises SettingError.
    """
    return store_url({"url": option or ""})


def parse_milliseconds(text: str, ctx: click.Context, param: click.Parameter) -> int:
    """Parse 500ms, 5s or 1m30s; a bare number is seconds."""
    return round(DurationParameter().convert(text, param, ctx) * 1_000)


def parse_objectives(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    """Parse NAME=LENGTH to milliseconds by name."""
    limits: dict[str, int] = {}
    for value in values:
        name, sign, length = value.rpartition("=")
        if not sign or not name:
            raise click.BadParameter(f"must be NAME=LENGTH, like emails=500ms or *=5s, got {value!r}", ctx, param)
        if name in limits:
            raise click.BadParameter(f"must have one objective a name, got {name!r} twice", ctx, param)
        limits[name] = parse_milliseconds(length, ctx, param)
    return limits


_RATE = re.compile(r"(?:(.+)=)?(\d+(?:\.\d+)?)/(s|m|h)").fullmatch
_UNIT_S = {"s": 1, "m": 60, "h": 3_600}


def parse_rates(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, float]:
    """Parse [QUEUE=]NUMBER/s to tasks a second by queue; ``*`` without a queue: all other queues."""
    per_second: dict[str, float] = {}
    for value in values:
        match = _RATE(value)
        if not match or float(match[2]) == 0:
            raise click.BadParameter(f"must be like 500/s, emails=100/s or reports=30/m, got {value!r}", ctx, param)
        per_second[match[1] or "*"] = float(match[2]) / _UNIT_S[match[3]]
    return per_second


def numbers_parser(least: int) -> Callable[[click.Context, click.Parameter, str], list[int]]:
    """Return a callback that parses 1,10,100 to whole numbers of at least ``least``."""

    def parse(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
        numbers = {whole_number(part.strip()) for part in value.split(",")}
        found = {number for number in numbers if number is not None and number >= least}
        if found != numbers:
            raise click.BadParameter(f"must be whole numbers from {least} on, like 1,10,100, got {value!r}", ctx, param)
        return sorted(found)

    return parse
