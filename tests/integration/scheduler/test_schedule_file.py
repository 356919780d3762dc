"""A damaged ``celerybeat-schedule`` is moved aside, at a start and at a takeover, and beat goes on."""

import logging
import pickle
import random
import shelve
from collections.abc import Callable
from dbm import dumb
from operator import getitem
from pathlib import Path
from typing import Any

import celery
import pytest
from celery.beat import PersistentScheduler

from celery_wheel import Celery, beat
from tests.integration.scheduler.conftest import TICK
from tests.kit.patience import wait_until
from tests.kit.stack import Stack

NAME = "celerybeat-schedule"

Damage = Callable[[Path], object]


@pytest.fixture
def beat_schedule() -> dict[str, dict[str, Any]]:
    return TICK


class Failing:
    def __reduce__(self) -> Any:
        return getitem, ({}, "key")


def entry(path: Path, **values: Any) -> None:
    with shelve.open(str(path)) as stored:  # noqa: S301  # our own bytes
        one = stored["entries"]["tick"]
        vars(one).update(values)
        stored["entries"] = {"tick": one}


def stored(path: Path, **values: Any) -> None:
    with shelve.open(str(path)) as shelf:  # noqa: S301  # our own bytes
        shelf.update(values)


def without(path: Path, key: str) -> None:
    with shelve.open(str(path)) as shelf:  # noqa: S301  # our own bytes
        del shelf[key]


def raw(path: Path, key: str, value: bytes) -> None:
    with dumb.open(str(path), "w") as file:
        file[key] = value


def siblings(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{NAME}*"))


def each(path: Path, change: Callable[[bytes], bytes]) -> None:
    for one in siblings(path):
        one.write_bytes(change(one.read_bytes()))


def instead(path: Path, name: str = NAME, content: bytes | None = None) -> None:
    for one in siblings(path):
        one.unlink()
    place = path.with_name(name)
    if content is None:
        place.mkdir()
        (place / "file").touch()
    else:
        place.write_bytes(content)


DAMAGES: dict[str, Damage] = {
    "every file is half": lambda path: each(path, lambda content: content[: len(content) // 2]),
    "every file is empty": lambda path: each(path, lambda content: b""),
    "every file is garbage": lambda path: each(path, lambda content: random.Random(1).randbytes(500)),
    "half of the values": lambda path: path.with_suffix(".dat").write_bytes(b"\x80\x04"),
    "no values": lambda path: path.with_suffix(".dat").unlink(),
    "no index": lambda path: path.with_suffix(".dir").unlink(),
    "a folder": instead,
    "a folder for the values": lambda path: instead(path, f"{NAME}.dat"),
    "a folder for the index": lambda path: instead(path, f"{NAME}.dir"),
    "another file": lambda path: instead(path, content=b"0 4 * * * backup\n"),
    "a SQLite database that is none": lambda path: instead(path, content=b"SQLite format 3\0" + bytes(500)),
    "entries are no dict": lambda path: stored(path, entries=[1]),
    "entries are none": lambda path: stored(path, entries=None),
    "an entry is a text": lambda path: stored(path, entries={"tick": "soon"}),
    "an entry without a time": lambda path: entry(path, last_run_at="yesterday"),
    "an entry without a count": lambda path: entry(path, total_run_count="many"),
    "a pickle of nothing": lambda path: raw(path, "entries", b""),
    "a pickle that ends early": lambda path: raw(path, "entries", pickle.dumps({"tick": 1})[:-3]),
    "a pickle of a class that is gone": lambda path: raw(path, "entries", b"cceleri.beat\nEntry\n."),
    "a pickle of a name that is gone": lambda path: raw(path, "entries", b"ccelery.beat\nEntri\n."),
    "a pickle that fails": lambda path: raw(path, "entries", pickle.dumps(Failing())),
    "a time zone that is no pickle": lambda path: raw(path, "tz", b"UTC"),
    "a flag that is none": lambda path: stored(path, utc_enabled="yes"),
    **{f"no {key}": lambda path, key=key: without(path, key) for key in sorted(beat.KEYS)},  # type: ignore[misc]
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / NAME


@pytest.fixture
def scheduler(path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Hold the shard from the next call of ``_set_periodic`` on; dbm.dumb is on every platform."""
    monkeypatch.setattr("dbm._defaultmod", dumb)
    monkeypatch.setattr("dbm._modules", {"dbm.dumb": dumb})
    with Celery("proj", broker="memory://", set_as_current=False) as app:
        app.conf.update(
            beat_schedule={"tick": {"task": "tick", "schedule": 30.0}},
            wheel_store=f"sqlite:///{path.parent}/wheel.sqlite3",
        )
        PersistentScheduler(app, schedule_filename=str(path)).close()
        yield beat.WheelScheduler(app, schedule_filename=str(path))


def tick(scheduler: Any) -> None:
    """Call the part of ``WheelMixin.tick`` that runs while the shard is held."""
    PersistentScheduler.tick(scheduler)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_moved_aside(
    scheduler: Any, path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    DAMAGES[damage](path)
    left = {one.name.removeprefix(NAME) for one in siblings(path)}
    scheduler._set_periodic(True)
    tick(scheduler)
    assert scheduler.schedule["tick"].total_run_count == 0
    scheduler.close()
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    aside = Path(record.new_path)  # type: ignore[attr-defined]
    assert record.action == "schedule_renamed"  # type: ignore[attr-defined]
    assert "the times at which periodic entries last ran are lost" in record.getMessage()
    assert {one.name.removeprefix(aside.name) for one in path.parent.glob(f"{aside.name}*")} == left
    caplog.clear()
    scheduler._set_periodic(True)
    tick(scheduler)
    assert not [one for one in caplog.records if one.levelno == logging.ERROR], "the new file is sound"
    scheduler._set_periodic(False)


def test_a_sound_file_is_left_alone(scheduler: Any, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for count in range(3):
        scheduler._set_periodic(True)
        assert scheduler.schedule["tick"].total_run_count == count
        scheduler.reserve(scheduler.schedule["tick"])
        scheduler._set_periodic(False)
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING and one.name == beat.__name__]
    assert not list(path.parent.glob("*.damaged-*"))


def test_without_a_file_nothing_is_logged(scheduler: Any, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for one in siblings(path):
        one.unlink()
    scheduler._set_periodic(True)
    scheduler.close()
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING and one.name == beat.__name__]


def test_another_base_scheduler_has_no_such_file(tmp_path: Path) -> None:
    with celery.Celery("proj", broker="memory://", set_as_current=False) as app:
        app.conf.update(wheel_base_scheduler="celery.beat:Scheduler", wheel_store=f"sqlite:///{tmp_path}/w.sqlite3")
        scheduler = beat.WheelScheduler(app)
        scheduler._set_periodic(True)
        scheduler.close()


def test_a_start_and_a_takeover_with_a_damaged_file(stack: Stack) -> None:
    path = stack.folder / NAME
    path.mkdir()
    first = stack.beat()
    stack.wait_for_holder(first)
    wait_until(lambda: stack.ticks() >= 2, "the periodic entry is sent")
    second = stack.beat()
    second.wait_for("beat: Starting")
    second.suspend()  # it takes over as soon as the first has ended
    first.kill()
    for one in siblings(path):
        if one.is_file():
            one.write_bytes(b"\x80garbage")
    ticks = stack.ticks()
    second.resume()
    stack.wait_for_holder(second)
    wait_until(lambda: stack.ticks() >= ticks + 2, "the second sends it")
    for process in (first, second):
        process.wait_for("cannot be used")
    assert second.is_alive()
