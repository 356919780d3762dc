"""Errors of the first day come once, in one line, with the remedy."""

import pytest

from tests.integration.adopting.conftest import NewProject

APP = """
import sys

sys.modules.update(dict.fromkeys({missing!r}))
from celery_wheel import Celery

app = Celery("proj", broker="{broker}", beat_scheduler="wheel")
"""

SQS = "sqs://key:secret@127.0.0.1:1"


@pytest.mark.parametrize("missing", [["boto3"], ["boto3", "botocore", "botocore.client"]])
def test_a_missing_client_of_the_broker_is_one_line(project: NewProject, missing: list[str]) -> None:
    project.write("proj.py", APP.format(broker=SQS, missing=missing))
    for command in (["beat"], ["wheel", "drain", "--to-broker", "--yes"]):
        done = project.run("-m", "celery", "-A", "proj", *command)
        assert done.returncode == 1
        [line] = [one for one in done.stderr.splitlines() if one.startswith("Error")]
        if command == ["beat"]:
            assert line.startswith("Error: broker_url needs the client library of sqs://, got ")
            assert line.endswith("run: pip install 'kombu[sqs]'")
        assert "Traceback" not in done.stderr
        assert "secret" not in done.stderr
    if len(missing) > 1:
        sent = project.run("-c", "from proj import app; app.send_task('add', countdown=5)")
        assert "SettingError: broker_url needs the client library of sqs://" in sent.stderr
    doctor = project.run("-m", "celery", "-A", "proj", "wheel", "doctor")
    assert "→ Run: pip install 'kombu[sqs]'\n" in doctor.stdout, doctor.stderr


def test_the_warning_about_tls_without_options_comes_once(project: NewProject) -> None:
    project.write("proj.py", APP.format(broker="rediss://127.0.0.1:1/0", missing=[]))
    beat = project.start("beat", "proj", "beat", "-l", "INFO")
    beat.wait_for("lost the broker")
    assert beat.said().count("Secure redis scheme specified (rediss)") == 1


@pytest.mark.parametrize(("options", "times"), [((), 1), (("-S", "wheel"), 0)], ids=["another", "ours"])
def test_beat_without_the_wheel_says_that_tasks_wait(project: NewProject, options: tuple[str, ...], times: int) -> None:
    project.write("proj.py", APP.format(broker="memory://", missing=[]).replace(', beat_scheduler="wheel"', ""))
    beat = project.start("beat", "proj", "beat", "-l", "INFO", *options)
    beat.wait_for("shard 0 is held" if options else "until a beat with the wheel runs")
    assert beat.said().count("until a beat with the wheel runs") == times


def test_beat_without_a_folder_for_its_store_names_the_setting(project: NewProject) -> None:
    project.write("proj.py", f"import os\nos.access = lambda *_: False\n{APP.format(broker='memory://', missing=[])}")
    project.variables["XDG_STATE_HOME"] = "/proc/nowhere"
    done = project.run("-m", "celery", "-A", "proj", "beat")
    assert done.returncode == 1
    assert "Error: wheel_store must be set where this user may write neither to the project's folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_script_that_does_not_set_django_up_is_told_to(project: NewProject) -> None:
    project.write_django('CELERY_BEAT_SCHEDULER = "wheel"\nCELERY_BROKER_URL = "memory://"\n', "CELERY")
    use = "from django_wheel import wheel; print(wheel.conf.store)"
    said = project.run("-c", use).stderr
    assert said.endswith("Django is not set up in this process: call django.setup() first.\n")
    assert project.output("-c", f"import django; django.setup(); {use}").endswith("celery-wheel.sqlite3")
