"""The examples of docs/pipeline-jobs.md run unchanged except for their paths."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from celery_wheel.pipeline.cli import main, make_command
from celery_wheel.pipeline.jobs import JOBS
from celery_wheel.pipeline.jobs.reconcile import DISPATCHED, EXECUTED, KINDS, SCHEDULED
from tests.spark.stores import fill, site

PAGE = (Path(__file__).parents[2] / "docs" / "pipeline-jobs.md").read_text()
#: The jobs that the page describes.
DESCRIBED = re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def names(table: str) -> set[str]:
    """Return the words in code of a table's first column."""
    return set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE))))


def test_the_examples_run(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scheduled, executed = blocks("json")[1].splitlines()
    (tmp_path / "scheduled.jsonl").write_text(f"{scheduled}\n")
    (tmp_path / "executed.jsonl").write_text(f"{executed}\n")
    here = [block.replace("/var/lib/wheel", str(tmp_path)) for block in blocks("sh") + blocks("python") + blocks("sql")]
    with site(f"sqlite:///{tmp_path}/wheel.sqlite3") as one:
        fill(one)
        for line in here[0].splitlines():
            program, *arguments = shlex.split(line)
            assert program == "celery-wheel-pipeline"
            done = CliRunner().invoke(main, arguments)
            assert (done.exit_code, "Error" in done.output) == (0, False), done.output
    names: dict[str, Any] = {}
    for example in here[1:-1]:
        exec(example, names)  # noqa: S102 - our own page
    shown = capsys.readouterr().out
    assert re.search(r"\| *celery *\| *6 *\|", shown)
    assert "{'2027-01-15': 9}" in shown
    by_duckdb, by_polars, by_spark = names["by_duckdb"], names["by_polars"], names["by_spark"]
    assert by_duckdb.count("*").fetchall() == [(9,)]
    assert (by_polars.collect().height, by_spark.count()) == (9, 9)
    assert sum(row[3] for row in by_duckdb.query("by_duckdb", here[-1]).fetchall()) == 7
    drawn = [name for name in DESCRIBED if name not in ("archive", "compact")]
    assert {name: len(list(tmp_path.glob(f"*/{name}.png"))) for name in drawn} == dict.fromkeys(drawn, 1)
    assert json.loads((tmp_path / "audit/summary.json").read_text())["findings"] == {}


def test_every_job_option_and_finding_of_the_page_exists() -> None:
    assert [name for name in JOBS if name in DESCRIBED] == DESCRIBED
    known = {option for name in JOBS for parameter in make_command(name).params for option in parameter.opts}
    known |= {"--py-files", "--no-deps"}  # of spark-submit and of pip
    assert set(re.findall(r"--[a-z]+(?:-[a-z]+)*", PAGE)) <= known
    findings, columns = PAGE.split("| finding | meaning |")[1].split("\n\n", 1)
    assert names(findings) == {*KINDS}
    assert names(columns.split("\n## ")[0]) <= {*SCHEDULED, *DISPATCHED, *EXECUTED}
