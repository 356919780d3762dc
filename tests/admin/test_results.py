"""The pages of the results of the pipeline's jobs.

Where the pipeline's jobs left no results, or unreadable ones, the pages say so.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.test import Client
from freezegun import freeze_time

from celery_wheel.errors import FileUnusable, SettingError
from celery_wheel.results import figures
from celery_wheel.results.figures import lateness_page
from celery_wheel.results.reader import JobResults, read_results
from django_wheel.views import results
from tests.admin.conftest import ADMIN, MakeClient, shown, text_of
from tests.admin.test_permissions import NASTY
from tests.kit.holder import NOW
from tests.kit.job_results import HOURS, LAST, RUN, hour, leave, leave_forecast, leave_lateness
from tests.kit.processes import run
from tests.kit.site import celery_app
from tests.kit.site.running import environment

LATENESS, FORECAST = f"{ADMIN}/lateness/", f"{ADMIN}/forecast/"
HOUR_MS = 3_600_000
LAST_MS = round(LAST.timestamp() * 1_000)

pytestmark = pytest.mark.usefixtures("nowhere")


def cells(text: str, table: str) -> list[list[str]]:
    body = text.split(f'id="{table}"')[1].split("<tbody>")[1].split("</tbody>")[0]
    rows = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in body.split("</tr>")[:-1]]
    return [[unescape(re.sub(r"<[^>]*>", "", one)).strip() for one in row] for row in rows]


def heat_places(text: str) -> list[tuple[float, str]]:
    """Return the place and the height of each cell of the heat map, in percent."""
    drawn = text.split('id="wheel-heat"')[1].split("</tbody>")[0]
    found = re.findall(r'<rect class="wheel-heat-\d" x="([\d.]+)%" y="\d+%" width="[\d.]+%" height="(\d+%)"', drawn)
    return [(float(x), height) for x, height in found]


@pytest.mark.usefixtures("still")
def test_lateness_has_exact_sums_and_the_worst_hour_and_no_percentile_of_several(viewer: Client, folder: Path) -> None:
    missed = {"objective_ms": 50, "over": 7, "missed": True}
    leave_lateness(
        folder,
        hour("app.slow", 0, p99_ms=9_000, max_ms=9_500, n=10),
        hour("app.slow", 1, p99_ms=100, max_ms=12_000, n=20),
        hour("app.mail", 0, objective_ms=50, over=0),
        hour("app.mail", 2, p50_ms=6, p90_ms=7, p99_ms=95, n=300, **missed),
        hour("app.quick", 0, queue=None),
        rejects={"no task": 3},
    )
    text = shown(viewer, LATENESS)
    worst = ["07:00 10 tasks", "5 ms", "40 ms", "9 s"]
    assert cells(text, "wheel-late") == [
        ["app.mail mail", "400", "95 ms", "1 of 2", "05:00 300 tasks", "6 ms", "7 ms", "95 ms"],
        ["app.slow mail", "30", "12 s", "-", *worst],
        ["app.quick -", "100", "95 ms", "-", "07:00 100 tasks", "5 ms", "40 ms", "90 ms"],
    ]
    assert "from 2027-01-15 05:00:00 until 2027-01-15 08:00:00" in text
    assert "2027-01-15 08:00:00, 1 h ago" in text
    assert 'id="wheel-old"' not in text
    assert "1 of 2</dd>" in text
    assert "1 to 3 of 3" in text
    assert "no task" in text
    name, drawn, newest = cells(text, "wheel-heat")[0]
    assert (name, newest) == ("app.mail mail", "90 ms")
    # Two of three hours have tasks; the newest is at the right, and the oldest missed its objective.
    assert re.findall(r"(\d\d:\d\d):00\.000: p99 (\d+) ms", drawn) == [("05:00", "95"), ("07:00", "90")]
    assert "p99 95 ms, maximum 95 ms, 300 tasks; 7 later than 50 ms" in drawn
    assert drawn.count("7 later") == text.count('<rect class="wheel-missed" x="0.0%"') == 1
    assert heat_places(text)[:2] == [(0.0, "20%"), (66.667, "20%")]


@pytest.mark.usefixtures("still")
def test_an_hour_leads_to_its_rows_of_the_history(viewer: Client, folder: Path) -> None:
    leave_lateness(folder, hour("app.a&b", 0, queue="a queue", max_ms=5_000), hour("app.other", 30))
    text = shown(viewer, f"{LATENESS}?task=app.a%26b")
    link = f"task=app.a%26b&amp;queue=a+queue&amp;from={LAST_MS - 5_000}&amp;to={LAST_MS + HOUR_MS}"
    assert text.count(f'{ADMIN}/history/?{link}"') == 3, "of the worst hour, of the map, and of the table of hours"
    assert cells(text, "wheel-hours") == [["07:00 2 h ago", "100", "5 ms", "40 ms", "90 ms", "5 s", "-", "0"]]
    assert "app.other" not in text.split('id="wheel-late"')[1]
    assert 'id="wheel-hours"' not in shown(viewer, LATENESS)
    assert "No dispatched task matches." in shown(viewer, f"{LATENESS}?queue=none")


def test_each_figure_of_an_hour_is_below_its_own_head(viewer: Client, folder: Path) -> None:
    leave_lateness(folder, hour("app.mail"))
    head, rows = shown(viewer, f"{LATENESS}?task=app.mail").split('id="wheel-hours"')[1].split("<tbody>")
    labels = re.findall(r'<td[^>]* data-label="(.*?)"', rows.split("</tr>")[0])
    assert re.findall(r"<th scope[^>]*>(.*?)</th>", head) == labels


def test_the_worst_hour_is_a_single_hour(tmp_path: Path) -> None:
    rows = [hour("app.mail", 3, p99_ms=700), hour("app.mail", 0, objective_ms=50, p99_ms=90, max_ms=900)]
    [line] = lateness_page(JobResults(leave_lateness(tmp_path, *rows)), None, None, 0, 20).lines
    assert (line.worst.p99_ms, line.worst.objective_ms, line.worst.max_ms, line.max_ms) == (700, None, 95, 900)
    assert line.worst == line.last[0]


def test_the_last_48_hours_are_shown_and_all_are_counted(viewer: Client, folder: Path) -> None:
    leave_lateness(folder, *[hour("app.mail", ago, p99_ms=ago) for ago in range(100)])
    text = shown(viewer, LATENESS)
    [row] = cells(text, "wheel-heat")
    assert re.findall(r"p99 (\d+) ms", row[1]) == [str(ago) for ago in reversed(range(48))]
    assert row[2] == "0 ms"
    places = [x for x, _ in heat_places(text)]
    assert (places[0], places[-1]) == (0.0, 97.917)
    assert sorted(places) == places
    assert cells(text, "wheel-late")[0][1:3] == ["10,000", "95 ms"]


def test_lines_are_shown_in_parts(viewer: Client, folder: Path) -> None:
    leave_lateness(folder, *[hour(f"app.t{number:02}", p99_ms=1_000 - number) for number in range(45)])
    first = shown(viewer, f"{LATENESS}?queue=mail")
    assert "1 to 20 of 45" in first
    assert 'href="?queue=mail&amp;page=2" rel="next"' in first
    assert [row[0] for row in cells(first, "wheel-late")] == [f"app.t{number:02} mail" for number in range(20)]
    last = shown(viewer, f"{LATENESS}?page=3")
    assert "41 to 45 of 45" in last
    assert 'rel="next"' not in last
    assert "none of 45 is on this page" in shown(viewer, f"{LATENESS}?page=9")
    assert "page must be a whole number from 1 on" in shown(viewer, f"{LATENESS}?page=-1")
    assert "page must be a whole number from 1 on" in shown(viewer, f"{FORECAST}?page=\u0663" + "9" * 5_000)


def test_the_last_hours_of_many_rows_are_read(viewer: Client, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MAX_ROWS", 25)
    leave_lateness(folder, *[hour(f"app.t{at}", ago) for ago in range(4) for at in range(10)])
    text = shown(viewer, LATENESS)
    assert "from 2027-01-15 06:00:00 until" in text
    assert "the results have 20 earlier hours of tasks, which this page does not show" in text
    assert "1 to 10 of 10" in text


def test_the_first_and_the_last_rows_of_a_table_are_read_and_no_others(tmp_path: Path) -> None:
    rows = [hour(f"app.t{at:05}", at // 10) for at in range(2_500)]
    found = JobResults(leave(tmp_path, "lateness", {"hours": pa.Table.from_pylist(rows, HOURS)}))
    for last, wanted in ((False, "app.t00000"), (True, "app.t02490")):
        table, of = found.read_rows("hours", ["task"], 10, last=last)
        assert (table.num_rows, table["task"][0].as_py(), of, table.column_names) == (10, wanted, 2_500, ["task"])
    assert found.read_rows("hours", ["task"])[0].num_rows == 2_500


def test_only_columns_that_are_shown_are_read(viewer: Client, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, whole = set(), pq.ParquetFile.read_row_groups

    def read_row_groups(file: pq.ParquetFile, groups: list[int], columns: list[str]) -> pa.Table:
        read.update(columns)
        return whole(file, groups, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", read_row_groups)
    leave_lateness(folder, hour("app.mail"))
    shown(viewer, LATENESS)
    assert read == set(HOURS.names) - {"sketch"}


HERD = {"second": RUN + timedelta(seconds=90), "queue": "mail", "n": 5_000, "usual": 2.5, "limit": 99.0, "jitter_s": 52}


@freeze_time("2027-01-16 09:00:00")
def test_the_forecast_shows_due_tasks_herds_and_drains_and_its_age(viewer: Client, folder: Path) -> None:
    at_minutes = [(at, queue) for at in (0, 5, 300) for queue in ("a", "mail")]
    minutes = [{"minute": RUN + timedelta(minutes=at), "queue": queue, "n": 10} for at, queue in at_minutes]
    minutes.append({"minute": RUN + timedelta(days=20), "queue": "a", "n": 4_321})
    tasks = [{"n": 4_990, "task": "app.campaign"}, {"n": 10, "task": "app.mail"}]
    drain = {"queue": "mail", "rate": 2.5, "n": 5_000, "worst_backlog": 4_998, "worst_at": RUN}
    busiest = {"second": "2027-01-15T07:01:30Z", "queue": "mail", "n": 5_000}
    leave_forecast(
        folder,
        {"busiest_second": busiest, "rejects": {"no instant at which it is due": 2}},
        minutes=minutes,
        herds=[{**HERD, "n": 200, "second": RUN, "tasks": tasks[1:]}, {**HERD, "tasks": tasks}],
        drain=[{**drain, "longest_wait_s": 2_000.0, "drained_at": RUN + timedelta(hours=1)}],
    )
    text = shown(viewer, FORECAST)
    assert "1,234</dd>" in text
    assert "5,000 <small" in text
    assert 'id="wheel-old"' in text
    at_ms = round(RUN.timestamp() * 1_000)
    assert f'/pending/?from={at_ms}&amp;to={at_ms + 60_000}"><title>20 pending, yesterday 08:00 - 08:01</title>' in text
    assert "20 pending, yesterday 08:05 - 08:06" in text
    assert f'/pending/?from={at_ms + 5 * HOUR_MS}&amp;to={at_ms + 6 * HOUR_MS}"' in text
    assert "later: 4,321" in text
    assert cells(text, "wheel-herds") == [
        ["2027-01-15 08:01:30 1 d ago", "mail", "5,000", "2.5", "52 s", "app.campaign: 4,990app.mail: 10"],
        ["2027-01-15 08:00 1 d ago", "mail", "200", "2.5", "52 s", "app.mail: 10"],
    ]
    assert f"/pending/?queue=mail&amp;from={at_ms + 90_000}&amp;to={at_ms + 91_000}" in text
    assert cells(text, "wheel-drains") == [
        ["mail", "2.5/s", "5,000", "4,998", "33 min 20 s", "2027-01-15 09:00 1 d ago"]
    ]
    assert "no instant at which it is due" in text
    assert f'href="{ADMIN}/wheel/"' in text
    narrow = shown(viewer, f"{FORECAST}?queue=a")
    assert f'/pending/?from={at_ms}&amp;to={at_ms + 60_000}&amp;queue=a"' in narrow
    assert "10 pending, yesterday 08:05 - 08:06" in narrow
    assert "No herd matches." in narrow


def test_empty_results_are_shown(viewer: Client, folder: Path) -> None:
    leave_lateness(folder)
    leave_forecast(folder)
    assert "No task was dispatched." in shown(viewer, LATENESS)
    text = shown(viewer, FORECAST)
    assert "There are no herds." in text
    assert "--rate 500/s" in text


@pytest.mark.parametrize("wait", [float("inf"), float("nan"), -1.0])
def test_an_impossible_wait_is_no_error_of_the_page(viewer: Client, folder: Path, wait: float) -> None:
    leave_forecast(folder, drain=[{"queue": "mail", "rate": 1e-300, "n": 1, "longest_wait_s": wait}])
    assert "mail" in shown(viewer, FORECAST)


def test_results_are_escaped(viewer: Client, folder: Path) -> None:
    leave_lateness(folder, hour(NASTY, queue=NASTY), rejects={NASTY: 1})
    leave_forecast(
        folder,
        {"rejects": {NASTY: "many"}, "busiest_minute": {"minute": NASTY, "queue": NASTY, "n": NASTY}, "pending": NASTY},
        minutes=[{"minute": RUN, "queue": NASTY, "n": 1}],
        herds=[{**HERD, "queue": NASTY, "tasks": [{"n": 1, "task": NASTY}]}],
        drain=[{"queue": NASTY, "rate": 1.0, "n": 1, "worst_backlog": 1, "longest_wait_s": 1.0, "drained_at": RUN}],
    )
    for address in (LATENESS, FORECAST, f"{LATENESS}?task={NASTY}", f"{FORECAST}?queue={NASTY}"):
        text = shown(viewer, address)
        assert "<script>alert" not in text
        assert "\u202e" not in text.replace("value=", "").split("<form")[-1].split("</form>")[-1]


def test_long_names_are_truncated(viewer: Client, folder: Path) -> None:
    leave_lateness(folder, hour("t" * 100_000))
    assert len(re.sub(r'href="[^"]*"', "", shown(viewer, LATENESS))) < 50_000


def test_a_web_process_loads_no_java_and_no_spark(tmp_path: Path) -> None:
    leave_lateness(tmp_path, hour("app.mail"))
    leave_forecast(tmp_path, herds=[{**HERD, "tasks": []}])
    program = """
import sys
import django
django.setup()
from django.contrib.auth.models import User
from django.test import RequestFactory
from django.urls import resolve
for job, table in (("lateness", "wheel-late"), ("forecast", "wheel-herds")):
    request = RequestFactory().get(f"/admin/django_wheel/{job}/")
    request.user = User(username="root", is_staff=True, is_superuser=True)
    request.resolver_match = found = resolve(request.path)
    assert not any(name.startswith("pyarrow") for name in sys.modules) or job == "forecast"
    answer = found.func(request).render()
    assert (answer.status_code, f'id="{table}"' in answer.content.decode()) == (200, True)
print(*sorted({name.split(".")[0] for name in sys.modules}))
"""
    done = run(tmp_path, environment(tmp_path, SITE_RESULTS=str(tmp_path)), "-W", "error", "-c", program, cold=True)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "pyarrow" in loaded
    assert not {"pyspark", "py4j", "matplotlib"} & loaded


def test_the_samples_agree_about_the_time() -> None:
    assert round(RUN.timestamp() * 1_000) == NOW - HOUR_MS


#: The end of the command that writes the results again.
AGAIN = "--output {folder}/{job}"

Arrange = Callable[[Path, pytest.MonkeyPatch], object]


def summary(text: str) -> Arrange:
    def write(folder: Path, _: pytest.MonkeyPatch) -> None:
        for job in results.JOBS:
            (folder / job).mkdir()
            (folder / job / "summary.json").write_text(text)

    return write


def of_another_job(folder: Path, _: pytest.MonkeyPatch) -> None:
    for job in results.JOBS:
        leave(folder, "tune", {}).rename(folder / job)


@pytest.mark.parametrize(
    ("arrange", "why", "line"),
    [
        (lambda *_: None, "no job has written results into this folder", "celery-wheel-pipeline {job} --store"),
        (
            lambda _, patch: patch.setitem(celery_app.conf, "wheel_results", None),
            "wheel_results is not set",
            "CELERY_WHEEL_RESULTS = ",
        ),
        (
            lambda _, patch: patch.setattr(results, "find_spec", lambda name: None),
            "pyarrow is not installed here",
            "pip install 'celery-wheel[results]'",
        ),
        (summary('{"job": "x", "format": 2, "tables": {}}'), "must be of format 1, got 2; run the job again", AGAIN),
        (summary('{"job": "late'), "is not the summary of a job", AGAIN),
        (summary('{"format": 1}'), "it names no job, or no tables", AGAIN),
        (of_another_job, "has the results of another job, tune", AGAIN),
        (
            lambda folder, _: [(folder / job).write_text("a file") for job in results.JOBS],
            "is not the summary of a job",
            AGAIN,
        ),
    ],
)
def test_absent_results_are_reported_and_not_in_the_menu(
    client_of: MakeClient,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    arrange: Arrange,
    why: str,
    line: str,
) -> None:
    client = client_of("viewer")
    arrange(folder, monkeypatch)
    for job in results.JOBS:
        text = unescape(shown(client, f"{ADMIN}/{job}/"))
        assert why in text
        assert line.format(folder=folder, job=job) in text
    assert f"{ADMIN}/pending/" in shown(client, "/admin/")
    for job in results.JOBS:
        assert f"{ADMIN}/{job}/" not in shown(client, "/admin/")


@pytest.mark.parametrize(("kind", "sees"), [("staff", False), ("viewer", True), ("operator", True)])
def test_the_menu_offers_pages_that_have_results(client_of: MakeClient, folder: Path, kind: str, sees: bool) -> None:
    leave_lateness(folder)
    text = text_of(client_of(kind).get("/admin/"))
    assert (LATENESS in text) is sees
    assert FORECAST not in text


def test_the_wheel_page_has_results(viewer: Client, folder: Path, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "From the pipeline" not in shown(viewer, f"{ADMIN}/wheel/")
    leave_forecast(folder)
    page = shown(viewer, f"{ADMIN}/wheel/").split('id="content-main"')[1]
    assert FORECAST in page
    assert LATENESS not in page


def test_an_invalid_setting_is_reported(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(celery_app.conf, "wheel_results", "results")
    assert "wheel_results must be the absolute path of a folder" in shown(viewer, LATENESS, 503)
    assert FORECAST not in shown(viewer, "/admin/")
    with pytest.raises(SettingError, match="or None, got 'results'"):
        results.missing_results(results.project_conf(), "lateness")  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", ["removed", "half-written", "of other columns", "of other types"])
def test_unreadable_files_are_reported_and_are_no_error_of_the_page(viewer: Client, folder: Path, damage: str) -> None:
    [path] = leave_lateness(folder, hour("app.mail")).glob("hours-*.parquet")
    if damage == "removed":
        path.unlink()
    elif damage == "half-written":
        path.write_bytes(path.read_bytes()[:-10])
    elif damage == "of other columns":
        pq.write_table(pa.table({"task": ["app.mail"]}), path)
    else:
        row = {name: ["x"] for name in HOURS.names}
        pq.write_table(pa.table(row), path)
    text = shown(viewer, LATENESS, 503)
    assert "The results cannot be shown: " in text
    assert str(path) in text or "of other types" in text


def test_results_that_were_replaced_during_a_read_are_read_once_more(folder: Path) -> None:
    place = leave_lateness(folder, hour("app.old"))
    seen = []

    def read(found: JobResults) -> list[dict[str, Any]]:
        seen.append(found.summary["run"])
        if len(seen) == 1:  # the job comes to its end, twice
            next(place.glob("hours-*")).unlink()
            leave_lateness(folder, hour("app.new"), run=RUN + timedelta(hours=2))
        return found.rows("hours", ["task"])

    assert read_results(place, read) == [{"task": "app.new"}]
    assert seen == ["20270115T070000Z-7", "20270115T090000Z-7"]
    next(place.glob("hours-*")).unlink()
    with pytest.raises(FileUnusable, match="run lateness again if the error persists"):
        read_results(place, lambda found: found.rows("hours"))
