"""The steps of a job on stderr, and the parts of a long one. A file of its own: no Spark runs."""

import threading

import pytest

from celery_wheel.pipeline.cli import repeating
from celery_wheel.pipeline.session import is_remote
from tests.kit.patience import patience


def test_a_step_is_told_again_with_its_parts_until_the_next_one() -> None:
    told, again = list[str](), threading.Event()

    def progress(step: str) -> None:
        told.append(step)
        if step == "reading, 3 of 8 parts":
            again.set()

    with repeating(progress, lambda: ", 3 of 8 parts", every_s=0.001) as tell:
        tell("reading")
        assert again.wait(patience(5))
    assert not [one for one in threading.enumerate() if one.name == "progress"], "it is told no more"


def test_a_short_job_has_a_line_a_step() -> None:
    told = list[str]()
    with repeating(told.append, lambda: ", 1 of 2 parts") as tell:
        tell("reading")
        tell("drawing")
    assert told == ["reading", "drawing"]


@pytest.mark.parametrize(
    ("master", "remote", "variable", "expected"),
    [
        (None, None, "", False),
        (None, "sc://host:15002", "", True),
        (None, None, "sc://host:15002", True),
        ("local[2]", None, "sc://host:15002", False),
    ],
)
def test_a_server_of_spark_connect_has_no_parts_to_tell(
    master: str | None, remote: str | None, variable: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", variable)
    assert is_remote(master, remote) is expected
