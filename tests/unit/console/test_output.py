"""Tables on terminals of all widths, confirmations without an answer, and help texts that fit."""

import io
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from celery_wheel.cli import wheel
from celery_wheel.console import output
from celery_wheel.console.output import Column, GrowingTable, confirm
from celery_wheel.values.format import format_count, format_utc

UUID = "01a1fe17-1334-76f9-afcc-0dff6dd12dbb"
NOW = 1_800_000_000_000


class Line(NamedTuple):
    due_ms: int
    task_id: str
    task: str


COLUMNS: list[Column[Line]] = [
    Column("due", lambda one: format_utc(one.due_ms), no_wrap=True),
    Column("task id", lambda one: one.task_id),
    Column("task", lambda one: one.task),
    Column("key", lambda one: "", optional=True),
    Column("bytes", lambda one: "1,234,567", "right", optional=True),
]


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(150, []), (24 + 36 + 44 + 3 + 3 * 2, ["bytes"]), *((width, ["key", "bytes"]) for width in (60, 80, 100))],
)
def test_an_instant_is_never_folded_and_only_columns_without_room_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int, left_out: list[str]
) -> None:
    written = io.StringIO()
    monkeypatch.setattr(output, "console", lambda: Console(file=written, width=width))
    GrowingTable(COLUMNS).print([Line(NOW, UUID, "app.tasks.remind_the_customer_of_the_invoice")])
    title, first, *more = written.getvalue().splitlines()
    assert title.split() == [word for word in ("due", "task", "id", "task", "key", "bytes") if word not in left_out]
    assert first.startswith(format_utc(NOW) + "  ")
    if not left_out:
        assert first.split() == [format_utc(NOW), UUID, "app.tasks.remind_the_customer_of_the_invoice", "1,234,567"]
        assert more == [], "a task is one line where all columns have room"
    said = f"columns without room on this terminal: {', '.join(left_out)} (--json has them)\n"
    assert capsys.readouterr().err == (said if left_out else "")


@pytest.mark.parametrize(("answer", "message"), [("", "no answer was given"), ("n\n", "nothing was done")])
def test_without_a_yes_nothing_is_done(answer: str, message: str) -> None:
    @click.command()
    def command() -> None:
        confirm("Sure?")
        click.echo("done")

    found = CliRunner().invoke(command, input=answer)
    assert (found.exit_code, found.stdout) == (1, "")
    assert message in found.stderr
    assert CliRunner().invoke(command, input="y\n").stdout == "done\n"


def test_the_list_of_commands_has_a_whole_sentence_for_each() -> None:
    text = CliRunner().invoke(wheel, ["--help"], terminal_width=80).stdout
    commands = text.partition("Commands:")[2].strip().splitlines()
    assert len(commands) == len(wheel.commands)
    assert all(len(line) <= 80 and line.endswith(".") and not line.endswith("...") for line in commands)


def test_counts_have_the_noun_in_its_number() -> None:
    assert format_count(2, "entry") == "2 entries"
    found = [format_count(count, "task") for count in (0, 1, 2, 12_034)]
    assert found == ["0 tasks", "1 task", "2 tasks", "12,034 tasks"]
