"""The examples of docs/pipeline.md and docs/loading.md run unchanged except for their paths."""

from __future__ import annotations

import re
import shlex
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from celery_wheel.pipeline.cli import main
from celery_wheel.pipeline.source.options import read_options
from celery_wheel.pipeline.source.statements import HISTORY_SCHEMA, PENDING_SCHEMA
from celery_wheel.store import open_store
from celery_wheel.store.model import COMMITTED
from tests.kit.holder import NOW
from tests.spark.stores import fill, site

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "pipeline.md").read_text()
LOADING = (DOCS / "loading.md").read_text()


def test_the_examples_of_the_page_run(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) >= 4
    names: dict[str, Any] = {}
    with site(f"sqlite:///{tmp_path}/wheel.sqlite3") as one:
        fill(one)
        for example in examples:
            exec(example.replace("/var/lib/wheel", str(tmp_path)), names)  # noqa: S102 - our own page
        [command] = re.findall(r"```sh\n(celery-wheel-pipeline .*?)```", PAGE, re.DOTALL)
        line = command.replace("/var/lib/wheel", str(tmp_path))
        one.dispatch(one.holder.accept(NOW + 1_000), NOW + 99_000)  # with one that was pending for this instant
        for new in (2, 0):  # two new events, then none: the example has written the others
            done = CliRunner().invoke(main, shlex.split(line)[1:])
            assert (done.exit_code, f"{new} events" in done.stdout) == (0, True), done.output
    assert names["spark"] is spark
    shown = capsys.readouterr().out
    assert re.search(r"by\.key *\| *app\.remind *\| *1 *\|", shown)
    assert re.search(r"2027-01-15 *\| *rejected *\| *1 *\|", shown)


def test_the_loads_and_streams_of_the_page_run(spark: SparkSession, tmp_path: Path) -> None:
    trials = (
        "SELECT id AS user, 'a@example.org' AS address, timestamp '2030-01-01' AS ends_at, id AS trial FROM range(3)"
    )
    spark.sql(trials).coalesce(1).write.parquet(f"{tmp_path}/lake/trials")
    url = f"sqlite:///{tmp_path}/wheel.sqlite3"
    open_store(url).close()
    examples, names = re.findall(r"```python\n(.*?)```", LOADING, re.DOTALL), dict[str, Any]()
    for example in examples:
        exec(example.replace("/lake", f"{tmp_path}/lake").replace("postgresql://wheel@db/wheel", url), names)  # noqa: S102
    with closing(open_store(url)) as store:
        found = {one.load.name: (one.load.state, one.load.rows) for one in store.loads.latest()}
    [of_stream] = [name for name in found if re.fullmatch(r"trials/[0-9a-f-]{36}/0", name)]
    assert found == dict.fromkeys(["trials-2026-11-21", of_stream, "trials-of-january/0"], (COMMITTED, 3))


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
        "startingAt",
        "maxRows",
        "failOnLoss",
    }
    read_options({"url": "x", **dict.fromkeys(named & {"dueFrom", "dueTo", "partitions", "maxRows"}, "1")})
