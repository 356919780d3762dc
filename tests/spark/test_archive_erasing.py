"""``erase``: the events of a group are in no file of an archive any more, and the others stay, each once."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from celery_wheel.archive import reader
from celery_wheel.pipeline import cli
from celery_wheel.store.erasure_model import is_digest_of
from celery_wheel.store.model import DAY_MS
from tests.kit.holder import NOW
from tests.spark.stores import Site
from tests.spark.test_archive import add_events, archive, compact, data_files, events, folder

ANNA = "tenant:anna"

__all__ = ["folder"]  # the fixture


def add(one: Site, at_ms: int, task_id: str, **parts: Any) -> None:
    (row,) = one.holder.accept(one.store.lanes(0)[0].offset.due_ms + 1, task_id=task_id, **parts)
    one.dispatch([row], at_ms)


def erase(folder: Path, *options: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli.main, ["erase", "--archive", str(folder), "--json", *options])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_events_of_a_group_are_erased_and_all_others_stay(spark: SparkSession, one: Site, folder: Path) -> None:
    add_events(one, NOW)
    archive(one, folder)
    compact(spark, folder)
    add(one, NOW, "anna-1", group=ANNA, key=ANNA)
    add_events(one, NOW)
    archive(one, folder)
    compact(spark, folder)  # leaves a replaced copy for a day
    add(one, NOW + DAY_MS, "anna-2", group=ANNA, key=ANNA)
    archive(one, folder)
    before = events(folder)
    done = erase(folder, "--group", ANNA)
    assert (done["events"], done["days"]) == (2, {"2027-01-15": 1, "2027-01-16": 1})
    assert is_digest_of(ANNA, done["digest"])
    after = events(folder)
    assert len(after) == len(before) - 2
    assert Counter(after) <= Counter(before)
    assert data_files(folder) == {*reader.files(str(folder))}, "replaced files are removed at once"
    assert not [path for path in folder.rglob("*") if path.is_file() and b"anna" in path.read_bytes()]
    again = erase(folder, "--key", ANNA)
    assert (again["events"], again["days"], again["words"]) == (0, {}, ["no event matches"])
    add_events(one, NOW + 2 * DAY_MS)
    assert archive(one, folder)["events"] == 2, "a later run brings new events alone"


@pytest.mark.parametrize("options", [(), ("--key", "a", "--group", "b")])
def test_an_erasure_is_of_one_column(folder: Path, options: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli.main, ["erase", "--archive", str(folder), *options])
    assert done.exit_code == 2 or "erase must have one of" in done.output
