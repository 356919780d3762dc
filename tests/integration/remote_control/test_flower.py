"""Flower, as released on PyPI, beside a scheduler: its pages show the scheduler without an error."""

from __future__ import annotations

import json
import urllib.request
from urllib.error import URLError

import pytest

from tests.integration.remote_control.conftest import NodeStack
from tests.kit.patience import patience, wait_until
from tests.kit.servers import free_port


class Browser:
    def __init__(self, port: int) -> None:
        self._root = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> str:
        """Return the text of a page. Raises HTTPError, a URLError, for an address without a page."""
        with urllib.request.urlopen(self._root + path, timeout=patience(30)) as answer:  # noqa: S310 - our own server
            return str(answer.read().decode())

    def is_up(self) -> bool:
        try:
            return bool(self.get("/healthcheck"))
        except (URLError, ConnectionError):
            return False

    def shows(self, path: str, *texts: str) -> bool:
        try:
            page = self.get(path)
        except URLError:  # not known yet, or its node did not answer within the second that Flower waits
            return False
        return all(text in page for text in texts)

    def online(self) -> list[str]:
        """Return the names of the nodes that are online."""
        return sorted(one["hostname"] for one in json.loads(self.get("/workers?json=1"))["data"] if one["status"])


def test_flowers_pages_show_the_scheduler_and_pending_tasks(stack: NodeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    beat = stack.node(worker_send_task_events=True)
    stack.worker(worker_send_task_events=True)
    monkeypatch.setenv("FLOWER_UNAUTHENTICATED_API", "true")
    flower = stack.celery("flower", f"--port={port}", "--address=127.0.0.1", "--logging=info", cold=True)
    browser = Browser(port)
    wait_until(browser.is_up, "flower is up")
    wait_until(lambda: len(browser.online()) == 2, "it sees both online")
    celery, name = browser.online()
    assert (celery.partition("@")[0], name.partition("@")[0]) == ("celery", "wheel")
    waits, revoked = stack.send_far(args=(4711,)), stack.send_far()
    revoked.revoke()
    wait_until(lambda: stack.states(revoked.id) == ["cancelled"], "it is cancelled")
    shown = (waits.id, "(4711,)", revoked.id, "redis")
    wait_until(lambda: browser.shows(f"/worker/{name}", *shown), "the scheduler's page has its tasks")
    wait_until(lambda: browser.shows(f"/worker/{celery}", celery), "the worker has a page")
    wait_until(lambda: browser.shows(f"/task/{revoked.id}", "REVOKED"), "the task's page has the event")
    assert json.loads(browser.get("/api/tasks"))[revoked.id]["state"] == "REVOKED"
    for path in ("/workers", "/tasks", "/broker", "/metrics", "/api/workers?refresh=1"):
        assert browser.get(path)
    said = flower.said()
    assert "Traceback" not in said, said
    assert "ERROR" not in said, said
    assert "Traceback" not in beat.said()
