"""The HTTP server of a scheduler process, and the two probes that ask it: ready, not ready, or no answer."""

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection

import pytest

from celery_wheel.metrics import server
from celery_wheel.metrics.probe import NO_ANSWER, NOT_READY, READY, probe
from celery_wheel.metrics.server import HttpAnswer, MetricsServer
from tests.kit.patience import patience, wait_until
from tests.kit.servers import free_port


def fetch(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=patience())) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def fail(accept: str) -> HttpAnswer:
    raise LookupError("a defect")


def test_pages_are_served_until_the_stop(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    pages = {"/metrics": lambda accept: HttpAnswer(200, accept.encode()), "/bad": fail}
    served = MetricsServer(("127.0.0.1", port), pages)
    served.start()
    wait_until(lambda: listens(port), "the server listens")
    assert fetch(port, "/metrics?x=1") == (200, "")
    assert fetch(port, "/metrics", "HEAD") == (200, "")
    assert fetch(port, "/")[0] == 404
    assert "/metrics" in fetch(port, "/")[1]
    assert fetch(port, "/bad")[0] == 500
    assert "a defect" in caplog.text
    served.stop()
    wait_until(lambda: not listens(port), "the server has ended")


@pytest.mark.slow
def test_many_idle_and_slow_clients_keep_no_page_from_others() -> None:
    port, goes_on = free_port(), threading.Event()

    def slow(accept: str) -> HttpAnswer:
        goes_on.wait()
        return HttpAnswer(200, b"late")

    pages = {"/livez": lambda accept: HttpAnswer(200, b"ok"), "/slow": slow}
    served = MetricsServer(("127.0.0.1", port), pages)
    served.start()
    wait_until(lambda: listens(port), "the server listens")
    before = threading.active_count()
    with ExitStack() as clients:
        for n in range(200):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", port)))
            with suppress(OSError):  # it was refused
                client.sendall(b"GET /livez HT" if n % 2 else b"")
        assert fetch(port, "/livez") == (200, "ok")
        assert threading.active_count() - before <= 2 * server.MOST
        for _ in range(40):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", port)))
            with suppress(OSError):
                client.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
        assert threading.active_count() - before <= 2 * server.MOST
        goes_on.set()
        wait_until(lambda: threading.active_count() - before <= server.MOST, "the pages are made")
        assert fetch(port, "/livez") == (200, "ok")
    served.stop()


def test_a_client_is_served_where_all_others_leave_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[str] = []
    with server._Server(("127.0.0.1", 0), lambda request, address, by: served.append(address)) as http:  # type: ignore[arg-type]
        http._open = dict.fromkeys(socket.socket() for _ in range(server.MOST))
        http._ended = {socket.socket() for _ in range(server.MOST)}

        def leave(timeout_s: float) -> None:
            for one in [*http._open, *http._ended]:
                http.shutdown_request(one)

        monkeypatch.setattr(http._changed, "wait", leave)
        http.process_request(socket.socket(), "the last")
        wait_until(lambda: served == ["the last"], "the client is served")


def test_an_address_in_use_is_told_once_and_taken_when_it_is_free(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "RETRY_FIRST_S", 0.01)
    caplog.set_level(logging.INFO)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        served = MetricsServer(("127.0.0.1", port), {"/metrics": lambda accept: HttpAnswer(200, b"here")})
        served.start()
        wait_until(lambda: "cannot be served" in caplog.text, "the log has the error")
    wait_until(lambda: "metrics are served" in caplog.text, "the address is taken")
    assert fetch(port, "/metrics") == (200, "here")
    assert caplog.text.count("cannot be served") == 1
    served.stop()


def test_a_server_without_its_address_stops(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(server, "RETRY_FIRST_S", 3_600)
    monkeypatch.setattr(server, "RETRY_MOST_S", 3_600)
    monkeypatch.setattr(server, "JOIN_S", patience())
    with socket.create_server(("127.0.0.1", 0)) as other:
        served = MetricsServer(other.getsockname(), {})
        served.start()
        wait_until(lambda: "cannot be served" in caplog.text, "the log has the error")
        served.stop()
        assert not served._thread.is_alive()


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
