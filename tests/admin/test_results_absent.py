"""Where the pipeline's jobs left no results, or unreadable ones, the pages say so."""

from collections.abc import Callable
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.test import Client

from celery_wheel.errors import FileUnusable, SettingError
from celery_wheel.results.reader import JobResults, read_results
from django_wheel.views import results
from tests.admin.conftest import ADMIN, MakeClient, shown, text_of
from tests.kit.job_results import HOURS, RUN, hour, leave, leave_forecast, leave_lateness
from tests.kit.site import celery_app

LATENESS, FORECAST = f"{ADMIN}/lateness/", f"{ADMIN}/forecast/"

pytestmark = pytest.mark.usefixtures("nowhere")


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
