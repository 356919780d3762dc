"""``schedule``: from a file to the store, once, with the load before and after."""

import csv
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from celery_wheel.pipeline import cli
from celery_wheel.store.model import COMMITTED
from tests.spark.stores import Site, loaded_messages
from tests.spark.test_write import listed

HEADER = "day,hour,minute,flight,to"
DAYS = [f"2030-11-0{n}" for n in range(1, 6)]


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
def call(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, one: Site, flights: Path) -> Any:
    monkeypatch.setattr(cli, "_start_session", lambda *_: spark)

    def run(*options: str) -> Result:
        common = ["--store", one.url, "--rows", str(flights), "--sql", SQL, "--task", "air.board", "--queue", "gates"]
        return CliRunner().invoke(cli.main, ["schedule", *common, "--zone", "America/New_York", "--json", *options])

    return run


@pytest.mark.slow
def test_a_dry_run_reports_the_load_and_writes_nothing(call: Any, one: Site, tmp_path: Path) -> None:
    found = call("--dry-run", "--id", "flight", "--output", str(tmp_path / "out"))
    assert found.exit_code == 0, found.output
    summary = json.loads(found.stdout)
    assert (summary["rows"], summary["good"]) == (602, 600)
    assert summary["rejects"] == {"flight is missing": 1, "local time cannot be read": 1}
    assert (summary["first"], summary["last"]) == ("2030-11-01T05:30:00Z", "2030-11-05T06:30:00Z")
    assert [herd["n"] for herd in summary["worst_herds"]] == [120] * 5
    assert "nothing was scheduled: this was a dry run" in summary["words"]
    assert listed(one) == []
    [rejects] = (tmp_path / "out").glob("rejects-*.parquet")
    reasons = {row["reason"] for row in pq.read_table(rejects).to_pylist()}
    assert reasons == {"flight is missing", "local time cannot be read: 2030-11-06 25:00"}, "each keeps its value"
    [load] = (tmp_path / "out").glob("load-*.parquet")
    assert [(row["before"], row["after"]) for row in pq.read_table(load).to_pylist()] == [(0, 120)] * 5
    assert (tmp_path / "out" / "schedule.png").stat().st_size > 5_000


@pytest.mark.slow
def test_a_batch_is_loaded_once(call: Any, one: Site) -> None:
    first, second = (json.loads(call("--batch", name, "--id", "flight").stdout) for name in ("november", " november "))
    assert (first["loaded"], first["was_loaded"]) == (600, False)
    assert (second["loaded"], second["was_loaded"]) == (0, True)
    assert first["words"][-1].endswith("; except those whose flight the store has already")
    assert (first["not_accepted"], second["not_accepted"]) == (0, 600), "no scheduler has accepted them"
    assert "not counted: 600 tasks of earlier loads, not yet accepted by a scheduler" in second["words"]
    assert (len(first["worst_herds"]), second["worst_herds"]) == (5, []), "a loaded batch adds nothing"
    assert listed(one) == [("november", COMMITTED, 600)]


@pytest.mark.slow
def test_a_fold_may_be_refused_and_jitter_spreads_a_herd(call: Any) -> None:
    summary = json.loads(call("--dry-run", "--fold", "reject", "--jitter", "10m").stdout)
    assert summary["good"] == 480 + 1  # the row without a flight is valid without --id
    assert summary["herds"] == 0
    assert summary["rejects"]["local time occurs twice in America/New_York"] == 120


CAMPAIGN = ("--sql", "SELECT * FROM rows")
KWARGS: list[dict[str, Any]] = [{"note": 'a "b"\n, ü \x1e'}, {"path": "C:\\new"}, {"a": None, "nest": {"b": [1, None]}}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form", "options"),
    [
        ("rows.csv", {}, ()),
        (
            "rows.csv",
            {"delimiter": ";", "quotechar": "'", "encoding": "latin-1"},
            ("--delimiter", ";", "--quote", "'", "--encoding", "ISO-8859-1"),
        ),
        ("rows.jsonl", {}, ()),
    ],
    ids=["as in RFC 4180", "another form", "JSON lines"],
)
def test_arguments_keep_their_own_text(
    call: Any, one: Site, tmp_path: Path, name: str, form: dict[str, str], options: tuple[str, ...]
) -> None:
    """A backslash in a CSV belongs to the JSON, and a line of JSON gets no null of another line's argument."""
    path, local = tmp_path / name, "2031-01-01 10:00"
    with path.open("w", newline="", encoding=form.pop("encoding", "utf-8")) as file:
        if name.endswith("l"):
            file.writelines(json.dumps({"local": local, "kwargs": one}) + "\n" for one in KWARGS)
        else:
            texts = [json.dumps(one, indent=1, ensure_ascii=False) for one in KWARGS]
            csv.writer(file, **form).writerows([["local", "kwargs"], *([local, text] for text in texts)])
    found = json.loads(call("--rows", str(path), *CAMPAIGN, "--batch", "campaign", *options).stdout)
    assert (found["loaded"], found["rejects"]) == (3, {})
    bodies = [json.loads(message.body)[1] for message in loaded_messages(one.store)]
    assert sorted(map(str, bodies)) == sorted(map(str, KWARGS))


def test_a_csv_with_another_separator_is_named(call: Any, tmp_path: Path) -> None:
    path = tmp_path / "campaign.csv"
    path.write_text("eta;task\n2031-01-01;shop.remind\n")
    found = call("--rows", str(path), *CAMPAIGN, "--dry-run")
    assert found.exit_code != 0
    assert "its values seem to be separated by ';'; give --delimiter ';'" in found.output


@pytest.mark.slow
def test_a_herd_of_pending_tasks_is_no_herd_of_a_load_beside_it(call: Any, one: Site, tmp_path: Path) -> None:
    at_ms = int(datetime(2031, 1, 1, 15, tzinfo=UTC).timestamp() * 1_000)
    one.holder.accept(*[at_ms] * 500, queue="gates")
    path = tmp_path / "campaign.jsonl"
    for local, herds in {"09:00": [], "10:00": [501]}.items():
        path.write_text(json.dumps({"local": f"2031-01-01 {local}"}))
        found = json.loads(call("--rows", str(path), *CAMPAIGN, "--dry-run").stdout)
        assert [herd["n"] for herd in found["worst_herds"]] == herds, local


@pytest.mark.slow
def test_a_load_without_valid_rows_does_not_use_up_its_name(call: Any, one: Site) -> None:
    bad = call("--batch", "november", "--sql", "SELECT 'never' AS local FROM rows")
    summary = json.loads(bad.stdout)
    assert (bad.exit_code, summary["good"], summary["loaded"]) == (1, 0, 0)
    assert "nothing was scheduled: no row is valid" in summary["words"]
    good = json.loads(call("--batch", "november", "--id", "flight").stdout)
    assert (good["loaded"], good["was_loaded"]) == (600, False)
    nothing = call("--batch", "december", "--sql", "SELECT 'never' AS local FROM rows WHERE false")
    assert nothing.exit_code == 0, "an empty input is no failure"
    assert [name for name, _, _ in listed(one)] == ["november"]


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
