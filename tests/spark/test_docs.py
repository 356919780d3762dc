"""The examples of the pipeline's pages in docs run unchanged except for their paths, and each page has every option."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from celery_wheel.pipeline import cli
from celery_wheel.pipeline.cli import main, make_command
from celery_wheel.pipeline.jobs import JOBS
from celery_wheel.pipeline.jobs.reconcile import DISPATCHED, EXECUTED, KINDS, SCHEDULED
from celery_wheel.pipeline.source.options import read_options
from celery_wheel.pipeline.source.statements import HISTORY_SCHEMA, PENDING_SCHEMA
from celery_wheel.store.model import COMMITTED
from tests.kit.generated import site_page
from tests.kit.holder import NOW
from tests.spark.stores import Site
from tests.spark.test_write import listed

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "pipeline.md").read_text()
LOADING = (DOCS / "loading.md").read_text()


@pytest.mark.slow
def test_examples_run(spark: SparkSession, filled: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) >= 4
    names: dict[str, Any] = {}
    for example in examples:
        exec(example.replace("/var/lib/wheel", str(tmp_path)), names)  # noqa: S102 - our own page
    [command] = re.findall(r"```sh\n(celery-wheel-pipeline .*?)```", PAGE, re.DOTALL)
    line = command.replace("/var/lib/wheel", str(tmp_path))
    filled.dispatch(filled.holder.accept(NOW + 1_000), NOW + 99_000)  # with one that was pending for this instant
    for new in (2, 0):  # two new events, then none: the example has written the others
        done = CliRunner().invoke(main, shlex.split(line)[1:])
        assert (done.exit_code, f"{new} events" in done.stdout) == (0, True), done.output
    assert names["spark"] is spark
    shown = capsys.readouterr().out
    assert re.search(r"by\.key *\| *app\.remind *\| *1 *\|", shown)
    assert re.search(r"2027-01-15 *\| *rejected *\| *1 *\|", shown)


@pytest.mark.slow
def test_the_loads_and_streams_of_the_page_run(spark: SparkSession, one: Site, tmp_path: Path) -> None:
    columns = "id AS user, 'a@example.org' AS address, timestamp '2030-01-01' AS ends_at, id AS trial"
    spark.sql(f"SELECT {columns} FROM range(3)").coalesce(1).write.parquet(f"{tmp_path}/lake/trials")
    examples, names = re.findall(r"```python\n(.*?)```", LOADING, re.DOTALL), dict[str, Any]()
    for example in examples:
        exec(example.replace("/lake", f"{tmp_path}/lake").replace("postgresql://wheel@db/wheel", one.url), names)  # noqa: S102
    found = {name: (state, rows) for name, state, rows in listed(one)}
    [of_stream] = [name for name in found if re.fullmatch(r"trials/[0-9a-f-]{36}/0", name)]
    assert found == dict.fromkeys(["trials-2026-11-21", of_stream], (COMMITTED, 3))


def test_the_page_has_all_columns_and_options() -> None:
    for schema in (PENDING_SCHEMA, HISTORY_SCHEMA):
        assert f"`{' '.join(schema.names)}`" in PAGE
    named = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))))
    numbers = {"dueFrom", "dueTo", "partitions", "maxRows"}
    assert named == numbers | {"queue", "task", "events", "schema", "startingAt", "failOnLoss"}
    read_options({"url": "x", **dict.fromkeys(numbers, "1")})


JOBS_PAGE = (DOCS / "pipeline-jobs.md").read_text()
#: The jobs that the page describes.
DESCRIBED = re.findall(r"^## (\w+)$", JOBS_PAGE, re.MULTILINE)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", JOBS_PAGE, re.DOTALL)


def names(table: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE))))


@pytest.mark.slow
def test_job_pages_run(spark: SparkSession, filled: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [scheduled, executed] = next(found for found in map(str.splitlines, blocks("json")) if len(found) == 2)
    (tmp_path / "scheduled.jsonl").write_text(f"{scheduled}\n")
    (tmp_path / "executed.jsonl").write_text(f"{executed}\n")
    here = [block.replace("/var/lib/wheel", str(tmp_path)) for block in blocks("sh") + blocks("python")]
    for line in here[0].splitlines():
        program, *arguments = shlex.split(line)
        assert program == "celery-wheel-pipeline"
        done = CliRunner().invoke(main, arguments)
        assert (done.exit_code, "Error" in done.output) == (0, False), done.output
    names: dict[str, Any] = {}
    for example in here[1:]:
        exec(example, names)  # noqa: S102 - our own page
    shown = capsys.readouterr().out
    assert re.search(r"\| *celery *\| *6 *\|", shown)
    assert "{'2027-01-15': 9}" in shown
    by_duckdb, by_polars, by_spark = names["by_duckdb"], names["by_polars"], names["by_spark"]
    assert by_duckdb.count("*").fetchall() == [(9,)]
    assert (by_polars.collect().height, by_spark.count()) == (9, 9)
    drawn = [name for name in DESCRIBED if name not in ("archive", "compact", "erase")]
    assert {name: len(list(tmp_path.glob(f"*/{name}.png"))) for name in drawn} == dict.fromkeys(drawn, 1)
    assert json.loads((tmp_path / "audit/summary.json").read_text())["findings"] == {}


def test_every_job_option_and_finding_of_the_page_exists() -> None:
    assert [name for name in JOBS if name in DESCRIBED] == DESCRIBED
    known = {option for name in JOBS for parameter in make_command(name).params for option in parameter.opts}
    known |= {"--py-files", "--no-deps", "--help"}  # of spark-submit, of pip, and of click
    assert set(re.findall(r"--[a-z]+(?:-[a-z]+)*", JOBS_PAGE)) <= known
    findings, columns = JOBS_PAGE.split("| finding | meaning |")[1].split("\n\n", 1)
    assert names(findings) == {*KINDS}
    assert names(columns.split("\n## ")[0]) <= {*SCHEDULED, *DISPATCHED, *EXECUTED}


SCHEDULE_PAGE = (DOCS / "schedule-job.md").read_text()


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", SCHEDULE_PAGE, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("celery-wheel-pipeline ")]


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Path:
    [mails] = re.findall(r"```csv\n(.*?)```", SCHEDULE_PAGE, re.DOTALL)
    (tmp_path / "mails.csv").write_text(mails)
    (tmp_path / "semicolons.csv").write_bytes('eta;kwargs\n2031-01-01;\'{"to": "Jörg; Ann"}\'\n'.encode("latin-1"))
    trials = "SELECT id AS ID, timestamp '2031-01-01 10:00' AS ENDS_AT FROM range(4)"  # as databases write names
    spark.sql(trials).write.jdbc(f"jdbc:derby:{tmp_path}/crm;create=true", "trials")
    return tmp_path


@pytest.mark.slow
def test_examples_of_schedule_run(spark: SparkSession, one: Site, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_WHEEL_STORE", one.url)
    monkeypatch.setattr(cli, "_start_session", lambda *_: spark)
    found: list[dict[str, Any]] = []
    for line in commands():
        arguments = shlex.split(line.replace("/lake", str(lake)))[1:]
        done = CliRunner().invoke(cli.main, [*arguments, *(() if "--json" in arguments else ("--json",))])
        assert done.exit_code == 0, done.output
        found.append(json.loads(done.stdout))
    mails, trials, semicolons = found
    assert mails["rejects"] == {"local time cannot be read": 1, "mail occurs before": 1}
    assert (mails["loaded"], trials["loaded"], semicolons["loaded"]) == (3, 4, 1)
    assert (mails["first"], mails["last"]) == ("2031-03-30T01:30:00Z", "2031-11-02T05:30:00Z")
    assert {"load", "herds", "rejects"} <= {path.name.split("-")[0] for path in (lake / "mails").iterdir()}
    assert {name for name, _, _ in listed(one)} == {"mails-2031", "trials", "semicolons"}


def test_the_page_has_every_option() -> None:
    options = {option for parameter in cli.make_command("schedule").params for option in parameter.opts}
    text = site_page("schedule-job.md", SCHEDULE_PAGE) + JOBS_PAGE
    assert set(re.findall(r"--[a-z]+(?:-[a-z]+)*", text)) >= options
    assert set(re.findall(r"--[a-z]+(?:-[a-z]+)*", SCHEDULE_PAGE)) <= options | {"--help"}
