"""A job in a process: its progress, its summary, and each of its ends."""

import sys
from pathlib import Path

import pytest

from celery_wheel.pipeline.orchestrators import JobFailed, JobProcess
from tests.kit.stand_in_job import COMMAND, DONE, FOUND


def test_the_summary_is_returned_and_each_step_is_told() -> None:
    steps: list[str] = []
    summary = JobProcess("archive", [DONE, "0"], command=COMMAND).run(steps.append)
    assert (summary["days"], steps) == (2, ["archive: reading"])


def test_findings_are_an_error_with_the_summary() -> None:
    with pytest.raises(JobFailed, match="the job reconcile has findings: 3 scheduled, 0 ran; lost: 3") as raised:
        JobProcess("reconcile", [FOUND, "1"], command=COMMAND).run(lambda step: None)
    assert raised.value.summary == {
        "job": "reconcile",
        "findings": {"lost": 3},
        "words": ["3 scheduled, 0 ran", "lost: 3"],
    }


@pytest.mark.parametrize("output", ["", "no JSON", "[1, 2]"])
def test_a_job_that_ends_without_a_summary_failed_with_the_last_line_of_its_progress(output: str) -> None:
    with pytest.raises(JobFailed, match="the job archive ended with exit code 1: archive: reading") as raised:
        JobProcess("archive", [output, "1"], command=COMMAND).run(lambda step: None)
    assert raised.value.summary is None


def test_the_real_command_says_what_is_wrong_with_its_arguments() -> None:
    with pytest.raises(JobFailed, match=r"exit code 2: .*No such option.*--no-such-option"):
        JobProcess("archive", ["--no-such-option"]).run(lambda step: None)


def test_a_command_that_does_not_exist_is_named() -> None:
    with pytest.raises(JobFailed, match=r"the job archive did not start: .*no-such-program"):
        JobProcess("archive", command=["no-such-program"]).run(lambda step: None)


def test_variables_are_given_beside_those_of_the_process() -> None:
    program = "import os; print('{\"words\": [\"' + os.environ['CELERY_WHEEL_STORE'] + '\"]}')"
    command, variables = (sys.executable, "-c", program), {"CELERY_WHEEL_STORE": "sqlite:///one"}
    summary = JobProcess("archive", command=command, environment=variables).run(lambda step: None)
    assert summary["words"] == ["sqlite:///one"]


def test_an_interrupted_caller_interrupts_the_job_and_waits_for_its_last_words(tmp_path: Path) -> None:
    note = tmp_path / "interrupted"
    program = (
        "import pathlib, sys, time\n"
        "try:\n"
        "    print('archive: waiting', file=sys.stderr, flush=True)\n"
        "    time.sleep(600)\n"
        "except KeyboardInterrupt:\n"
        "    print('archive: tidying up' * 10_000, file=sys.stderr, flush=True)\n"  # more than a pipe holds
        f"    pathlib.Path({str(note)!r}).touch()\n"
    )

    def interrupt(step: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        JobProcess("archive", command=(sys.executable, "-c", program)).run(interrupt)
    assert note.exists()
