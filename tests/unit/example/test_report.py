"""The report of ``make demo-pipeline``: its figures, and its failures."""

from dataclasses import replace

import pytest
from demo.pipeline import options
from flights.report import YearReport
from flights.summary import summarise

DAY = summarise({"a": 100, "b": 200}, [("a", 103), ("b", 210)], now_ms=5_000, grace_ms=1_000, dispatched=2)
GOOD = YearReport(
    scheduled=336_778,
    repeated=0,
    rejected=0,
    gap_or_fold=0,
    accepted=336_778,
    dispatched=2,
    misplaced=0,
    day=DAY,
    herds=245,
    findings=0,
)


def test_the_report_has_one_figure_a_line() -> None:
    lines = GOOD.lines()
    assert lines[0].split() == ["scheduled", "336,778"]
    assert lines[-1].split() == ["lateness", "max", "10", "ms"]
    assert len({len(line) for line in lines}) == 2  # with and without the unit
    assert GOOD.faultless


@pytest.mark.parametrize(
    "wrong",
    [
        {"repeated": 1},
        {"misplaced": 1},
        {"findings": 1},
        {"day": replace(DAY, lost=1)},
        {"day": replace(DAY, duplicated=1)},
        {"day": replace(DAY, early=1)},
        {"day": replace(DAY, waiting=1)},
    ],
    ids=str,
)
def test_each_fault_is_a_failure(wrong: dict[str, object]) -> None:
    assert not replace(GOOD, **wrong).faultless


def test_seconds_are_the_length_of_the_day() -> None:
    found = options(["--seconds=30", "--date=2013-03-10"])
    assert (found.seconds, found.date.isoformat()) == (30, "2013-03-10")


def test_a_day_in_too_few_seconds_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options(["--seconds=5"])
    assert "seconds must be at least 10, got 5" in capsys.readouterr().err
