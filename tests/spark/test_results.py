"""Results are read without Spark, and the files of a run remain until the run after the next one has finished."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from celery_wheel.errors import FileUnusable
from celery_wheel.pipeline.jobs import JobSummary
from celery_wheel.pipeline.output import OutputFolder
from celery_wheel.results.reader import JobResults


def run(folder: Path, number: int) -> JobResults:
    output = OutputFolder(str(folder), "tune")
    output._run = f"20270115T080000Z-{number}"
    output.rows("shapes", [{"tick_ms": number}])
    output.finish(JobSummary("tune", {"tasks": number}, ["take it"]))
    return JobResults(folder)


def test_a_reader_keeps_the_files_of_its_summary_while_the_next_run_writes(tmp_path: Path) -> None:
    first = run(tmp_path, 1)
    run(tmp_path, 2)
    assert first.rows("shapes") == [{"tick_ms": 1}]
    third = run(tmp_path, 3)
    assert third.rows("shapes", ["tick_ms"]) == [{"tick_ms": 3}]
    assert (third.job, third.tables, third.summary["tasks"], third.summary["words"]) == (
        "tune",
        ["shapes"],
        3,
        ["take it"],
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "shapes-20270115T080000Z-2.parquet",
        "shapes-20270115T080000Z-3.parquet",
        "summary.json",
    ]
    with pytest.raises(FileUnusable, match="has no table 'hours' of tune; it has shapes"):
        third.table("hours")


def test_a_folder_holds_the_results_of_one_job(tmp_path: Path) -> None:
    run(tmp_path, 1)
    with pytest.raises(FileUnusable, match="has the results of tune; give lateness a folder of its own"):
        OutputFolder(str(tmp_path), "lateness")


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "does not exist"), ("{", "is not the summary"), ("[]", "format 1"), ('{"format": 2}', "got 2")],
)
def test_a_folder_without_usable_results_is_an_error(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "summary.json").write_text(text)
    with pytest.raises(FileUnusable, match=message):
        JobResults(tmp_path)


def test_reading_needs_pyarrow_only(tmp_path: Path) -> None:
    run(tmp_path, 7)
    program = (
        "import json, sys; from celery_wheel.results.reader import JobResults;"
        "rows = JobResults(sys.argv[1]).rows('shapes');"
        "print(json.dumps([rows, sorted({name.split('.')[0] for name in sys.modules})]))"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    rows, loaded = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert rows == [{"tick_ms": 7}]
    assert not {"pyspark", "py4j", "celery", "kombu", "sqlalchemy", "django", "matplotlib"} & {*loaded}
