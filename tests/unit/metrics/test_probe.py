"""``celery-wheel-probe`` and ``celery wheel status --probe``: ready, not ready, or no answer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from celery_wheel.metrics.probe import NO_ANSWER, NOT_READY, READY, probe
from celery_wheel.metrics.server import HttpAnswer, MetricsServer
from tests.kit.patience import wait_until
from tests.kit.servers import free_port
from tests.unit.metrics.test_server import listens


@pytest.fixture
def address() -> Iterator[str]:
    port = free_port()
    pages = {"/readyz": lambda _: HttpAnswer(503, b"the store is away\n"), "/livez": lambda _: HttpAnswer(200, b"ok\n")}
    server = MetricsServer(("127.0.0.1", port), pages)
    server.start()
    wait_until(lambda: listens(port), "the server listens")
    yield f"127.0.0.1:{port}"
    server.stop()


def test_a_probe_tells_the_schedulers_own_answer(address: str) -> None:
    assert probe(address) == (NOT_READY, "the store is away")
    assert probe(address, "/livez") == (READY, "ok")


def test_a_probe_without_an_answer_says_where_it_asked() -> None:
    code, text = probe(f"127.0.0.1:{free_port()}")
    assert code == NO_ANSWER
    assert "wheel_metrics" in text
    assert probe("nonsense") == (NO_ANSWER, "the address must be like 127.0.0.1:9808, got 'nonsense'")


def run(*arguments: str) -> tuple[int, str, str]:
    program = "from celery_wheel.metrics.probe import main; main()"
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_program_ends_with_the_code_of_the_answer(address: str) -> None:
    assert run(address) == (NOT_READY, "", "the store is away\n")
    assert run(address, "/livez") == (READY, "ok\n", "")
    assert run("--help")[0] == 0
    assert run("--help")[1].startswith("usage:")
    assert run("--verbose")[0] == 2


def test_the_program_imports_neither_celery_nor_a_database() -> None:
    program = "import sys, celery_wheel.metrics.probe; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert [one for one in loaded if one.split(".")[0] in ("celery", "kombu", "sqlalchemy", "prometheus_client")] == []
