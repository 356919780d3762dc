"""The examples of docs/schedule-job.md run unchanged except for their paths, and the page has every option."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from celery_wheel.pipeline import cli
from celery_wheel.store import open_store

PAGE = (Path(__file__).parents[2] / "docs" / "schedule-job.md").read_text()


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("celery-wheel-pipeline ")]


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Path:
    """The files of the examples."""
    [mails] = re.findall(r"```csv\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mails.csv").write_text(mails)
    (tmp_path / "corrected.csv").write_text("mail,local\nm4,2031-01-02 01:00\n")
    (tmp_path / "semicolons.csv").write_bytes('eta;kwargs\n2031-01-01;\'{"to": "Jörg; Ann"}\'\n'.encode("latin-1"))
    due = [{"eta": "2031-01-01T08:00:00Z", "args": [n]} for n in range(60)] + [{"eta": "2020-01-01", "args": []}]
    (tmp_path / "herd.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in due))
    trials = "SELECT id AS ID, timestamp '2031-01-01 10:00' AS ENDS_AT FROM range(4)"  # as databases write names
    spark.sql(trials).write.jdbc(f"jdbc:derby:{tmp_path}/crm;create=true", "trials")
    return tmp_path


def test_the_examples_run(spark: SparkSession, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{lake}/wheel.sqlite3"
    open_store(url).close()
    monkeypatch.setenv("CELERY_WHEEL_STORE", url)
    monkeypatch.setattr(cli, "_start_session", lambda *_: spark)
    found: list[dict[str, Any]] = []
    for line in commands():
        arguments = shlex.split(line.replace("/lake", str(lake)))[1:]
        done = CliRunner().invoke(cli.main, [*arguments, *(() if "--json" in arguments else ("--json",))])
        assert done.exit_code == 0, done.output
        found.append(json.loads(done.stdout))
    dry, mails, trials, semicolons, rules, herd, spread, corrected = found
    assert dry["rejects"] == mails["rejects"] == {"local time cannot be read": 1, "mail occurs before": 1}
    assert (dry["good"], mails["loaded"], trials["loaded"], semicolons["loaded"]) == (3, 3, 4, 1)
    assert (mails["first"], mails["last"]) == ("2031-03-30T01:30:00Z", "2031-11-02T05:30:00Z")
    assert rules["rejects"] == {"local time does not exist in Europe/Paris": 1, "local time cannot be read": 1}
    assert rules["first"] == "2031-10-26T01:30:00Z", "the second of both"
    assert ([one["n"] for one in herd["worst_herds"]], spread["herds"]) == ([60], 0)
    assert (sum(spread["rejects"].values()), spread["loaded"], corrected["loaded"]) == (1, 60, 1)
    assert {"load", "herds", "rejects"} <= {path.name.split("-")[0] for path in (lake / "mails").iterdir()}
    with closing(open_store(url)) as store:
        names = {one.load.name for one in store.loads.latest()}
    assert names == {"mails-2031", "trials", "semicolons", "herd", "mails-2031-corrected"}


def test_the_page_has_every_option() -> None:
    options = {option for parameter in cli.make_command("schedule").params for option in parameter.opts}
    named = set(re.findall(r"--[a-z]+(?:-[a-z]+)*", PAGE))
    assert named - {"--jars"} == options - {"--help"}
