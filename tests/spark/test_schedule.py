"""``schedule``: from a file to the store, once, with the load before and after."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from celery_wheel.pipeline import cli
from celery_wheel.pipeline.jobs import schedule
from celery_wheel.store import open_store
from celery_wheel.store.model import COMMITTED
from tests.kit.holder import Holder

HEADER = "day,hour,minute,flight,to"
DAYS = [f"2030-11-0{n}" for n in range(1, 6)]


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/wheel.sqlite3"
    open_store(url).close()
    return url


@pytest.fixture
def flights(tmp_path: Path) -> Path:
    """600 flights, 120 a day at 1:30 in New York; on one day, a Sunday, that time occurs twice."""
    lines = [f"{day},1,30,{n},mia" for n in range(120) for day in DAYS]
    path = tmp_path / "flights.csv"
    path.write_text("\n".join([HEADER, *lines, "2030-11-06,25,0,1,mia", "2030-11-06,1,0,,mia"]) + "\n")
    return path


SQL = (
    "SELECT concat(day, ' ', lpad(hour, 2, '0'), ':', lpad(minute, 2, '0')) AS local, array(flight, to) AS args, "
    "concat(day, '/', flight) AS flight FROM rows"
)


@pytest.fixture
def call(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, flights: Path) -> Any:
    monkeypatch.setattr(cli, "_start_session", lambda *_: spark)

    def run(*options: str) -> Result:
        common = ["--store", url, "--rows", str(flights), "--sql", SQL, "--task", "air.board", "--queue", "gates"]
        return CliRunner().invoke(cli.main, ["schedule", *common, "--zone", "America/New_York", "--json", *options])

    return run


def test_a_dry_run_reports_the_load_and_writes_nothing(call: Any, url: str, tmp_path: Path) -> None:
    found = call("--dry-run", "--id", "flight", "--output", str(tmp_path / "out"))
    assert found.exit_code == 0, found.output
    summary = json.loads(found.stdout)
    assert (summary["rows"], summary["good"]) == (602, 600)
    assert summary["rejects"] == {"flight is missing": 1, "local time cannot be read": 1}
    assert (summary["first"], summary["last"]) == ("2030-11-01T05:30:00Z", "2030-11-05T06:30:00Z")
    assert [herd["n"] for herd in summary["worst_herds"]] == [120] * 5
    assert "nothing was scheduled: this was a dry run" in summary["words"]
    with closing(open_store(url)) as store:
        assert store.loads.latest() == []
    [rejects] = (tmp_path / "out").glob("rejects-*.parquet")
    reasons = {row["reason"] for row in pq.read_table(rejects).to_pylist()}
    assert reasons == {"flight is missing", "local time cannot be read: 2030-11-06 25:00"}, "each keeps its value"
    [load] = (tmp_path / "out").glob("load-*.parquet")
    assert [(row["before"], row["after"]) for row in pq.read_table(load).to_pylist()] == [(0, 120)] * 5
    assert (tmp_path / "out" / "schedule.png").stat().st_size > 5_000


def test_a_batch_is_loaded_once(call: Any, url: str) -> None:
    first, second = (json.loads(call("--batch", name, "--id", "flight").stdout) for name in ("november", " november "))
    assert (first["loaded"], first["was_loaded"]) == (600, False)
    assert (second["loaded"], second["was_loaded"]) == (0, True)
    assert first["words"][-1].endswith("; except those whose flight the store has already")
    assert (first["not_accepted"], second["not_accepted"]) == (0, 600), "no scheduler has accepted them"
    assert "not counted: 600 tasks of earlier loads, not yet accepted by a scheduler" in second["words"]
    assert (len(first["worst_herds"]), second["worst_herds"]) == (5, []), "a loaded batch adds nothing"
    with closing(open_store(url)) as store:
        [one] = store.loads.latest()
        assert (one.load.name, one.load.state, one.load.rows) == ("november", COMMITTED, 600)


def test_quoted_json_in_a_csv_file_is_read(call: Any, tmp_path: Path) -> None:
    with (tmp_path / "quoted.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["args", "local", "flight"])
        lines.writerow([json.dumps(["ann, or bob", 'the "first"']), "2031-01-01T10:00:00", "1"])
        lines.writerow(["[]", "2031-01-01T10:00:00", "2"])
    quoted = ("--rows", str(tmp_path / "quoted.csv"), "--sql", "SELECT * FROM rows", "--id", "flight")
    summary = json.loads(call(*quoted, "--dry-run").stdout)
    assert (summary["good"], summary["rejects"]) == (2, {})


def test_a_fold_may_be_refused_and_jitter_spreads_a_herd(call: Any) -> None:
    summary = json.loads(call("--dry-run", "--fold", "reject", "--jitter", "10m").stdout)
    assert summary["good"] == 480 + 1  # the row without a flight is valid without --id
    assert summary["herds"] == 0
    assert summary["rejects"]["local time occurs twice in America/New_York"] == 120


CAMPAIGN = ("--sql", "SELECT * FROM rows", "--dry-run")


@pytest.fixture
def read_csv(spark: SparkSession) -> Callable[..., list[Any]]:
    def read(path: Path, **options: Any) -> list[Any]:
        form = {"delimiter": ",", "quote": '"', "encoding": "UTF-8", "row_a_line": False}
        return schedule._read_csv(spark, str(path), {**form, **options}).collect()

    return read


def test_a_csv_is_read_as_in_rfc_4180(read_csv: Callable[..., list[Any]], tmp_path: Path) -> None:
    """Quotes are doubled, a backslash belongs to the JSON, and a text may have several lines."""
    texts = [json.dumps(one, indent=1) for one in ({"note": 'a "b"\n, ü \x1e'}, {"path": "C:\\new"})]
    path = tmp_path / "campaign.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["eta", "kwargs"], *(["2031-01-01 10:00", text] for text in texts)])
    assert [row.kwargs for row in read_csv(path)] == texts


def test_a_csv_of_another_form_is_read(read_csv: Callable[..., list[Any]], tmp_path: Path) -> None:
    path = tmp_path / "campaign.csv"
    path.write_bytes("eta;name\n2031-01-01;'Jörg; Ann'\n".encode("latin-1"))
    options = {"delimiter": ";", "quote": "'", "encoding": "ISO-8859-1", "row_a_line": True}
    assert [row.name for row in read_csv(path, **options)] == ["Jörg; Ann"]


def test_a_csv_with_another_separator_is_named(call: Any, tmp_path: Path) -> None:
    path = tmp_path / "campaign.csv"
    path.write_text("eta;task\n2031-01-01;shop.remind\n")
    found = call("--rows", str(path), *CAMPAIGN)
    assert found.exit_code != 0
    assert "its values seem to be separated by ';'; give --delimiter ';'" in found.output


def test_arguments_of_json_lines_keep_their_own_text(spark: SparkSession, tmp_path: Path) -> None:
    """A line without an argument gets no null of another line's argument."""
    path = tmp_path / "campaign.jsonl"
    wanted: list[dict[str, Any]] = [{"a": None, "nest": {"b": [1, None]}}, {"c": 2.5}]
    path.write_text("".join(json.dumps({"n": n, "kwargs": one}) + "\n" for n, one in enumerate(wanted)))
    found = schedule._read_json(spark, str(path)).orderBy("n").collect()
    assert [json.loads(row.kwargs) for row in found] == wanted


def test_a_herd_of_pending_tasks_is_no_herd_of_a_load_beside_it(call: Any, url: str, tmp_path: Path) -> None:
    at_ms = int(datetime(2031, 1, 1, 15, tzinfo=UTC).timestamp() * 1_000)
    with closing(open_store(url)) as store:
        Holder(store).accept(*[at_ms] * 500, queue="gates")
    path = tmp_path / "campaign.jsonl"
    for local, herds in {"09:00": [], "10:00": [501]}.items():
        path.write_text(json.dumps({"local": f"2031-01-01 {local}"}))
        found = json.loads(call("--rows", str(path), *CAMPAIGN).stdout)
        assert [herd["n"] for herd in found["worst_herds"]] == herds, local


def test_a_load_without_valid_rows_does_not_use_up_its_name(call: Any, url: str) -> None:
    bad = call("--batch", "november", "--sql", "SELECT 'never' AS local FROM rows")
    summary = json.loads(bad.stdout)
    assert (bad.exit_code, summary["good"], summary["loaded"]) == (1, 0, 0)
    assert "nothing was scheduled: no row is valid" in summary["words"]
    good = json.loads(call("--batch", "november", "--id", "flight").stdout)
    assert (good["loaded"], good["was_loaded"]) == (600, False)
    nothing = call("--batch", "december", "--sql", "SELECT 'never' AS local FROM rows WHERE false")
    assert nothing.exit_code == 0, "an empty input is no failure"
    with closing(open_store(url)) as store:
        assert [one.load.name for one in store.loads.latest()] == ["november"]


def test_instants_in_nanoseconds_are_an_error(call: Any, tmp_path: Path) -> None:
    """The default of pandas."""
    path = tmp_path / "nanoseconds.parquet"
    pq.write_table(pa.table({"eta": pa.array([1_900_000_000_123_456_789], pa.timestamp("ns", tz="UTC"))}), path)
    found = call("--dry-run", "--rows", str(path))
    assert found.exit_code == 1
    assert "has instants in nanoseconds, which Spark does not read" in found.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--batch must name this load"),
        (("--dry-run", "--id", "x"), "--id must name a column"),
        (("--batch", "b\0"), "option batch must be without NUL characters"),
        (("--dry-run", "--table", "x"), "--table must go with --jdbc"),
        (("--dry-run", "--jdbc", "jdbc:x"), "one of --rows and --jdbc must name the rows"),
        (("--dry-run", "--sql", "SELECT nothing FROM rows"), "nothing"),
        (("--dry-run", "--sql", "SELECT day AS local, 3.0D AS priority FROM rows"), "column priority must be byte or"),
    ],
)
def test_wrong_usage_is_an_error_of_one_line(call: Any, options: tuple[str, ...], message: str) -> None:
    found = call(*options)
    assert found.exit_code in (1, 2)
    assert message in found.stderr.splitlines()[-1]
