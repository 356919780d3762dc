"""What people write for instants, lengths, places and ids; and a forecast's arithmetic."""

from __future__ import annotations

import click
import pytest
from freezegun import freeze_time

from celery_wheel.cli import chosen, wheel
from celery_wheel.cli.options import Instant, Length, Place
from celery_wheel.outflow import Outflow, outflow

NOW = 1_800_000_000_000
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
def test_an_instant(text: str, at_ms: int) -> None:
    assert Instant().convert(text, None, None) == at_ms


@pytest.mark.parametrize("text", ["", "soon", "30m", "+", "+5", "1800000000", "20270115", "1969-12-31"])
def test_no_instant(text: str) -> None:
    """Seconds and dates without dashes are refused: they would be another instant, unseen."""
    with pytest.raises(click.BadParameter, match="must be like 2027-01-15T08:00"):
        Instant().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("0.5", 0.5), ("90s", 90), ("10m", 600), ("1h30m", 5_400), ("2d", 172_800)]
)
def test_a_length(text: str, seconds: float) -> None:
    assert Length().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "-5", "+5m", "soon", "1e9", "nan", "5y"])
def test_no_length(text: str) -> None:
    with pytest.raises(click.BadParameter, match="must be a length of time"):
        Length().convert(text, None, None)


@pytest.mark.parametrize("text", ["", "5", "a:b", "-1:2", "9999999999999999999:1"])
def test_no_place(text: str) -> None:
    assert Place().convert("1800000000000:4352", None, None) == (NOW, 4352)
    with pytest.raises(click.BadParameter, match="must be as a page before printed it"):
        Place().convert(text, None, None)


def test_ids_each_once_in_their_order() -> None:
    found = chosen.named(["b", "a", "b"], filtered=False)
    assert found is not None
    assert (found.names, found.by_filter) == (["b", "a"], False)
    assert chosen.named([], filtered=True) is None


@pytest.mark.parametrize(("given", "filtered"), [([], False), (["a"], True)])
def test_ids_or_a_filter(given: list[str], filtered: bool) -> None:
    with pytest.raises(click.UsageError):
        chosen.named(given, filtered)


def test_every_command_says_its_exit_codes_or_has_only_the_common_ones() -> None:
    for name, command in wheel.commands.items():
        assert command.help, name
        for option in command.params:
            assert not isinstance(option, click.Option) or option.help, (name, option.name)


def test_what_is_due_at_once_leaves_at_the_rate() -> None:
    assert outflow([(NOW, 100)], NOW, per_second=10) == Outflow(worst=100, worst_ms=NOW, done_ms=NOW + 10_000)


def test_what_is_left_over_is_added_to_the_next_hour() -> None:
    found = outflow([(NOW - HOUR, 7_200), (NOW + HOUR, 3_600)], NOW, per_second=1)
    assert found == Outflow(worst=7_200, worst_ms=NOW, done_ms=NOW + 3 * HOUR)
    assert outflow([], NOW, per_second=1) is None
