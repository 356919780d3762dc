"""``python -m demo``, which ``make demo`` runs, leaves nothing behind; the project passes Django's checks."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.demo.runs import (
    PATIENCE_S,
    PROJECT,
    executed,
    order_paid_and_unpaid,
    processes_of,
    storm_of_one_airline,
    wait,
)
from tests.kit.processes import Process, python
from tests.kit.servers import free_port

FLIGHTS = 1004


class Runner:
    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.port = free_port()  # demos of several tests run at once, and each takes 8000 by default
        self._log = run_dir.with_name("demo.log")
        self.process: Process | None = None

    def start(self, *arguments: str) -> "Runner":
        arguments = (f"--run-dir={self.run_dir}", f"--port={self.port}", *arguments)
        self.process = python(self._log, "-m", "demo", *arguments, folder=PROJECT)
        return self

    @property
    def output(self) -> str:
        return self.process.said()

    def wait_for(self, text: str) -> None:
        wait(lambda: text in self.output or not self.process.is_alive(), f"{text!r} in the output")
        assert text in self.output, self.output

    def page(self, name: str) -> str:
        """Return what the address answers that the demo has printed under this name."""
        [address] = re.findall(rf"^  {name} +http://(\S+)", self.output, re.MULTILINE)
        with urllib.request.urlopen(f"http://{address}", timeout=PATIENCE_S) as answer:
            return answer.read().decode()

    def end(self) -> int:
        """Wait for the end of the demo, which leaves no process behind; return its exit code."""
        code = self.process.end(PATIENCE_S)[0]
        assert not processes_of(self.run_dir)
        return code

    def figures(self) -> dict[str, int]:
        found = re.findall(r"^([a-z]+(?: p?[0-9a-z]+)?) +([0-9,]+)(?: ms)?$", self.output, re.MULTILINE)
        assert len(found) == len(dict(found)), self.output
        return {name: int(value.replace(",", "")) for name, value in found}


@pytest.fixture
def demo(run_dir: Path) -> Iterator[Runner]:
    runner = Runner(run_dir)
    yield runner
    if runner.process is not None:
        runner.process.kill()


@pytest.mark.slow
def test_the_whole_day_passes_in_the_given_seconds_and_the_demo_ends(demo: Runner) -> None:
    demo.start("--seconds=20").wait_for("Where to look")
    wait(lambda: executed(demo.run_dir) > 0, "a reminder")
    for name, said in {"board": "2013", "admin": "Log in", "metrics": "celery_wheel_accepted_total"}.items():
        assert said in demo.page(name), name
    assert demo.end() == 0, demo.output
    figures = demo.figures()
    assert {figures[name] for name in ("scheduled", "dispatched", "executed")} == {FLIGHTS}
    assert (figures["lost"], figures["duplicated"], figures["early"], figures["waiting"]) == (0, 0, 0, 0)
    assert re.search(r"nightly/New York +1 of 1 ran: 2013-07-10 01:30 EDT", demo.output)
    assert re.search(r"fleet/positions +[1-9]\d* ran, [1-9]\d* were skipped during a run", demo.output)
    assert "paused: The auditors are on leave." in demo.output
    assert re.search(r"^\d\d:\d\d:\d\d the first reminder was executed$", demo.output, re.MULTILINE)


@pytest.mark.slow
def test_an_unpaid_order_is_cancelled_and_ctrl_c_ends_the_demo_with_the_summary_of_the_moment(demo: Runner) -> None:
    demo.start().wait_for("Where to look")
    storm_of_one_airline(demo.port)
    order_paid_and_unpaid(demo.port)
    wait(lambda: executed(demo.run_dir) > 0, "a reminder")
    demo.process.signal(signal.SIGINT)
    assert demo.end() == 0, demo.output
    figures = demo.figures()
    assert 0 < figures["waiting"] < figures["scheduled"] <= FLIGHTS
    assert figures["executed"] + figures["waiting"] == figures["scheduled"]
    assert (figures["lost"], figures["duplicated"], figures["early"]) == (0, 0, 0)


@pytest.mark.slow
def test_a_signal_ends_a_demo_that_is_starting(demo: Runner) -> None:
    demo.start()
    wait((demo.run_dir / "worker.log").exists, "the start of the worker")
    demo.process.signal(signal.SIGTERM)
    assert demo.end() == 0, demo.output
    assert "Where to look" not in demo.output


@pytest.mark.slow
def test_a_crash_of_a_part_ends_the_demo_which_names_the_part(demo: Runner) -> None:
    demo.start().wait_for("Where to look")
    beat = next(process for process in processes_of(demo.run_dir) if "beat" in process.cmdline())
    beat.kill()
    assert demo.end() == 1
    assert "beat ended with -9" in demo.output


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not tell a child that its starter died")
def test_a_killed_demo_leaves_nothing_behind(demo: Runner) -> None:
    demo.start()
    wait((demo.run_dir / "web.log").exists, "the start of the last part")
    assert processes_of(demo.run_dir)
    demo.process.signal(signal.SIGKILL)  # of the demo alone
    wait(lambda: not processes_of(demo.run_dir), "the end of all its processes")


def test_a_port_in_use_is_reported_and_nothing_is_started(demo: Runner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert demo.start(f"--port={port}").end() == 1
    assert f"demo: port {port} is in use; name another: make demo PORT=" in demo.output


def test_a_silent_broker_is_named_without_its_password(demo: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("BROKER_URL", f"redis://:secret@127.0.0.1:{port}/0")
    assert demo.start().end() == 1
    assert f"127.0.0.1:{port}/0 does not answer" in demo.output
    assert "secret" not in demo.output
    assert "Traceback" not in demo.output


def test_too_few_seconds_are_refused(demo: Runner) -> None:
    assert demo.start("--seconds=5").end() == 2
    assert "seconds must be at least 10, got 5" in demo.output


def test_a_folder_with_other_files_is_left_alone(demo: Runner) -> None:
    (demo.run_dir / "thesis.txt").write_text("mine")
    assert demo.start().end() == 1
    assert "holds files that no demo made" in demo.output
    assert (demo.run_dir / "thesis.txt").read_text() == "mine"


def manage(run_dir: Path, *arguments: str) -> tuple[int, str]:
    """Return the exit code and the output of a command of the project, in which a warning is an error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "manage.py", *arguments],
        cwd=PROJECT,
        env={**os.environ, "RUN_DIR": str(run_dir)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("check", "--fail-level=WARNING"), ("makemigrations", "--check", "--dry-run")])
def test_djangos_checks_find_nothing(arguments: tuple[str, ...], run_dir: Path) -> None:
    code, said = manage(run_dir, *arguments)
    assert code == 0, said


@pytest.mark.slow
def test_a_day_that_is_not_in_the_data_is_refused_with_a_sentence(run_dir: Path) -> None:
    refusal = "CommandError: date must be a day of 2013, got 2014-01-01\n"
    assert manage(run_dir, "replay_flights", "--date=2014-01-01") == (1, refusal)
