"""No name in a line of the log begins another line, or acts on a terminal; numbers and plain values stay."""

import io
import logging
from collections.abc import Iterator

import pytest

from celery_wheel.values.log import get_logger

FORGED = "a\nINFO all is well\r\x1b[2K\u2028\x85\u202e"


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    logger, stream = logging.getLogger("celery_wheel.forged"), io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    yield stream
    logger.removeHandler(handler)


@pytest.mark.parametrize("arg", [FORGED, ValueError(FORGED), [FORGED]], ids=["text", "error", "list"])
@pytest.mark.parametrize("form", ["%s", "%r", "%.200s"])
def test_a_name_forges_no_line(lines: io.StringIO, form: str, arg: object) -> None:
    get_logger("celery_wheel.forged").error(f"task {form} waits %d s", arg, 5)
    said = lines.getvalue()
    assert said.endswith(" waits 5 s\n")
    assert said.removesuffix("\n").isprintable()
    assert "INFO all is well" in said


def test_named_arguments_forge_no_line_either(lines: io.StringIO) -> None:
    get_logger("celery_wheel.forged").error("task %(task)s, %(count)d times", {"task": FORGED, "count": 3})
    assert lines.getvalue().count("\n") == 1


def test_a_traceback_is_indented_and_visible(lines: io.StringIO) -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        get_logger("celery_wheel.forged").exception("it failed")
    first, *others = lines.getvalue().splitlines()
    assert first == "ERROR it failed"
    assert all(line.startswith("  ") and line.isprintable() for line in others)
    assert any("INFO all is well" in line for line in others)


def test_plain_arguments_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError("plain")
    with caplog.at_level(logging.INFO):
        get_logger("celery_wheel.forged").info("%s %r %d %g", "é", error, 1, 2.5)
    [record] = caplog.records
    assert record.args == ("é", error, 1, 2.5)
