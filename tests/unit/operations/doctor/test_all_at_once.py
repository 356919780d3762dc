"""A doctor who is called for several faults names each of them: none hides another."""

import os
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kombu import Queue

from celery_wheel import Celery
from celery_wheel.errors import SettingError
from celery_wheel.operations import doctor
from celery_wheel.operations.doctor import Grade, examine
from celery_wheel.store import open_store
from celery_wheel.store.model import Gate
from tests.kit.holder import Holder
from tests.kit.schedules import create

FAULTS: dict[str, str] = {
    "settings": "unknown setting",
    "task_queues": "workers would run tasks before they are due",
    "modes": "every user of this machine may open files of the store",
    "broker": "cannot be reached",
    "paused": "queue mail is paused",
    "shard 0": "nothing is dispatched",
    "schedule": "is broken, and does not run",
}


def app_of(folder: Path, **settings: Any) -> Any:
    app = Celery("proj", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.update(wheel_store=f"sqlite:///{folder}/wheel.sqlite3", task_queues=[Queue("celery"), Queue("wheel.0")])
    app.conf.update(settings)
    return app


@pytest.mark.parametrize("settings", [{"wheel_hstory_retention": 5}, {"wheel_tick": "soon", "wheel_hstory": 1}])
def test_none_of_seven_faults_hides_another(tmp_path: Path, settings: dict[str, Any]) -> None:
    with closing(open_store(f"sqlite:///{tmp_path}/wheel.sqlite3", shards=1)) as store:
        holder, now_ms = Holder(store), int(time.time() * 1_000)
        holder.apply(gates=[Gate("queue", "mail", "paused", 0, "", "ann", now_ms)])
        create(holder, "broken", next_ms=None, broken=True, note="no task")
    os.chmod(tmp_path / "wheel.sqlite3", 0o666)  # noqa: S103 - the fault
    with closing(app_of(tmp_path, **settings)) as app:
        found = [one for findings in examine(app) for one in findings if one.grade is not Grade.OK]
    texts = {about: " ".join(one.text for one in found if one.about == about) for about in FAULTS}
    assert {about: text in texts[about] for about, text in FAULTS.items()} == dict.fromkeys(FAULTS, True), found


def test_a_check_that_a_wrong_setting_ends_says_so(tmp_path: Path) -> None:
    with closing(app_of(tmp_path, wheel_limits="none")) as app:
        found = [one for findings in examine(app) for one in findings]
    assert ("settings", Grade.NOTE) in [(one.about, one.grade) for one in found]
    assert [one.about for one in found if one.grade is Grade.ERROR][:1] == ["settings"]
    assert "task_queues" in [one.about for one in found]


def test_an_error_of_a_setting_without_a_wrong_one_is_a_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(_site: Any) -> Any:
        raise SettingError("a defect")

    monkeypatch.setattr(doctor, "CHECKS", (check,))
    with closing(app_of(tmp_path)) as app, pytest.raises(SettingError, match="a defect"):
        list(examine(app))
