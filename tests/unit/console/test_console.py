"""Tables on terminals of all widths, confirmations without an answer, and help texts that fit.

Parameters of commands: instants, lengths of time, cursors, ids and filters; and the estimate of a backlog.
"""

import io
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner
from freezegun import freeze_time
from rich.console import Console

from celery_wheel.cli import wheel
from celery_wheel.cli.selection import Selection, selected
from celery_wheel.console import output
from celery_wheel.console.output import Column, GrowingTable, confirm
from celery_wheel.console.parameters import CursorParameter, DurationParameter, InstantParameter, take_criteria
from celery_wheel.results import BacklogEstimate, estimate_backlog
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


HOUR = 3_600_000


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("now", NOW),
        ("+30m", NOW + 30 * 60_000),
        ("-1h30m", NOW - 90 * 60_000),
        ("+1w2d", NOW + 9 * 86_400_000),
        ("+250ms", NOW + 250),
        ("2027-01-15T08:00", NOW),
        ("2027-01-15 08:00:00.007", NOW + 7),
        ("2027-01-15T09:00+01:00", NOW),
        ("2027-01-15", NOW - 8 * HOUR),
        ("1800000000001", NOW + 1),
    ],
)
@freeze_time("2027-01-15T08:00:00Z")
def test_an_instant_is_read(text: str, at_ms: int) -> None:
    assert InstantParameter().convert(text, None, None) == at_ms


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("0.5", 0.5), ("90s", 90), ("10m", 600), ("1h30m", 5_400), ("2d", 172_800)]
)
def test_a_length_is_read(text: str, seconds: float) -> None:
    assert DurationParameter().convert(text, None, None) == seconds


def test_a_cursor_is_two_numbers() -> None:
    assert CursorParameter().convert("1800000000000:4352", None, None) == (NOW, 4352)


@pytest.mark.parametrize(
    ("kind", "text", "rule"),
    [
        # Seconds and dates without dashes would silently be another instant.
        *[
            (InstantParameter(), text, "must be like 2027-01-15T08:00")
            for text in ("", "soon", "30m", "+", "+5", "1800000000", "20270115", "1969-12-31")
        ],
        *[(DurationParameter(), text, "must be a length") for text in ("", "-5", "+5m", "soon", "1e9", "nan", "5y")],
        *[
            (CursorParameter(), text, "must be a cursor that a page printed")
            for text in ("", "5", "a:b", "-1:2", "9999999999999999999:1")
        ],
    ],
)
def test_another_text_is_refused_with_the_rule(kind: click.ParamType, text: str, rule: str) -> None:
    with pytest.raises(click.BadParameter, match=rule):
        kind.convert(text, None, None)


def test_each_id_is_selected_once_in_its_order() -> None:
    matched = Selection(["c"], by_filter=True)
    assert selected(["b", "a", "b"], {"queue": None}, lambda: matched) == Selection(["b", "a"])
    assert selected([], {"queue": "mail"}, lambda: matched) is matched


@pytest.mark.parametrize(("ids", "queue"), [([], None), (["a"], "mail")])
def test_a_selection_is_either_ids_or_a_filter(ids: list[str], queue: str | None) -> None:
    with pytest.raises(click.UsageError, match=r"^name "):
        selected(ids, {"queue": queue}, lambda: Selection([]))


def test_filters_are_taken_out_of_the_options() -> None:
    given = {"queue": "mail", "from_ms": NOW, "to_ms": NOW + 1, "limit": 50}
    assert take_criteria(given) == {"queue": "mail", "from_ms": NOW, "to_ms": NOW + 1}
    assert given == {"limit": 50}
    with pytest.raises(click.BadParameter, match="must be after --from"):
        take_criteria({"from_ms": NOW, "to_ms": NOW})


#: The first words of commands' help texts.
VERBS = {
    *("Bring", "Cancel", "Check", "Complete", "Dispatch", "Erase", "Give", "List"),
    *("Make", "Measure", "Move", "Schedule", "Show", "Stop", "Undo"),
}


@pytest.mark.parametrize("name", sorted(wheel.commands))
def test_the_help_of_a_command_starts_with_a_verb_and_every_option_has_one(name: str) -> None:
    command = wheel.commands[name]
    for text in (command.help, command.short_help):
        assert text is not None
        assert text.split()[0] in VERBS
    for option in command.params:
        assert not isinstance(option, click.Option) or (option.help or "").rstrip().endswith((".", "]")), option.name


def test_tasks_that_are_due_at_once_are_dispatched_at_the_rate() -> None:
    assert estimate_backlog([(NOW, 100)], NOW, per_second=10) == BacklogEstimate(
        worst=100, worst_ms=NOW, done_ms=NOW + 10_000
    )


def test_a_backlog_is_added_to_the_next_hour() -> None:
    found = estimate_backlog([(NOW - HOUR, 7_200), (NOW + HOUR, 3_600)], NOW, per_second=1)
    assert found == BacklogEstimate(worst=7_200, worst_ms=NOW, done_ms=NOW + 3 * HOUR)
    assert estimate_backlog([], NOW, per_second=1) is None
