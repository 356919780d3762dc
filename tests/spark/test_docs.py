"""The examples of docs/pipeline.md run as they stand there, but for their paths."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from celery_wheel.pipeline.columns import HISTORY_SCHEMA, PENDING_SCHEMA
from celery_wheel.pipeline.source.options import read_options
from tests.spark.stores import fill, site

PAGE = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()


def test_the_examples_of_the_page_run(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) >= 4
    names: dict[str, Any] = {}
    with site(f"sqlite:///{tmp_path}/wheel.sqlite3") as one:
        fill(one)
        for example in examples:
            exec(example.replace("/var/lib/wheel", str(tmp_path)), names)  # noqa: S102 - our own page
    assert names["spark"] is spark
    shown = capsys.readouterr().out
    assert re.search(r"by\.key *\| *app\.remind *\| *1 *\|", shown)
    assert re.search(r"2027-01-15 *\| *rejected *\| *1 *\|", shown)


def test_the_page_has_all_columns_and_options() -> None:
    for schema in (PENDING_SCHEMA, HISTORY_SCHEMA):
        assert f"`{' '.join(schema.names)}`" in PAGE
    named = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))))
    assert named == {
        "queue",
        "task",
        "dueFrom",
        "dueTo",
        "partitions",
        "events",
        "schema",
        "pushdown",
        "startingAt",
        "maxRows",
        "failOnLoss",
    }
    read_options({"url": "x", **dict.fromkeys(named & {"dueFrom", "dueTo", "partitions", "maxRows"}, "1")})
