"""Sentry's own integration sees the occurrences of a herd of Beat's entries at their look-ahead; virtual time."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

#: Entries, and schedules of the API; all are due two minutes after the start.
COUNT, DUE_MS = 20, 120_000


def check_ins_of_a_herd(folder: Path) -> dict[str, Any]:
    """Return what has begun before and after the look-ahead of the instant. Patches this process."""
    from celery.beat import PersistentScheduler

    from celery_wheel.broker.reader import QueuedMessageReader
    from celery_wheel.scheduler.occurrences import ScheduleRenderer
    from celery_wheel.scheduler.sources.apply_entry import BeatApplyEntry
    from tests.kit.check_ins import RecordingTransport
    from tests.kit.project import app
    from tests.unit.engine.recurring.conftest import definition, with_limits

    assert RecordingTransport is not None, "its import is what patches Beat"
    rig = with_limits(herd_count=2, herd_per_s=1)
    decode = QueuedMessageReader().decode
    rig.engine.ctx.renderer = ScheduleRenderer(app, 2**20, decode, BeatApplyEntry(PersistentScheduler, app))

    def seen() -> dict[str, int]:
        path = folder / "check_ins"
        begun = len(path.read_text().splitlines()) if path.exists() else 0
        return {"begun": begun, "made": len(rig.runs())}

    for source in ("beat", "api"):
        named = {f"{source}{n}": definition(DUE_MS) for n in range(COUNT)}
        rig.change("create", named, source=source)
    rig.pass_time(80_000)
    for _ in range(300):
        rig.run("tend", "ingest")
        rig.pass_time(50)
    before = seen()
    rig.pass_time(DUE_MS - 95_000 - rig.limits.look_ahead_ms)
    rig.run("tend", "ingest", rounds=3)
    return {"before": before, "after": seen()}


@pytest.mark.slow
def test_check_ins_of_a_herd_begin_at_the_look_ahead(tmp_path: Path) -> None:
    project = {"folder": str(tmp_path), "plain": False, "queues": [], "settings": {"broker_url": "memory://"}}
    said = subprocess.run(
        [sys.executable, "-m", __name__, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "TEST_PROJECT": json.dumps(project)},
    )
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout) == {
        "before": {"begun": 0, "made": COUNT},
        "after": {"begun": COUNT, "made": 2 * COUNT},
    }, "schedules of the API are made ahead, those that Sentry watches are not"


if __name__ == "__main__":
    print(json.dumps(check_ins_of_a_herd(Path(sys.argv[1]))))
