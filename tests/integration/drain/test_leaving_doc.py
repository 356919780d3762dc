"""The examples of docs/leaving.md run and print the output of the page."""

import re
from contextlib import closing
from pathlib import Path

import pytest

from celery_wheel.operations.drain import drain, open_existing_store
from celery_wheel.producer.rescue import Rescue
from celery_wheel.store import open_store
from tests.integration.drain.conftest import LeavingStack
from tests.integration.drain.test_drain import filled, queued
from tests.kit.manual import page
from tests.kit.patience import wait_until

PAGE = page("leaving.md")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_examples_run(redis_stack: LeavingStack, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(EXAMPLES) == 4
    stack, setting, step, to_broker, to_file = redis_stack, *EXAMPLES
    ids = filled(stack, 3)
    names = {"app": stack.app}
    exec(setting + step, names)  # noqa: S102
    assert Rescue in stack.app.steps["consumer"]
    exec(to_broker, names)  # noqa: S102
    assert [one["id"] for one in queued(stack)] == ids
    assert "3 tasks wait in their own queues now" in capsys.readouterr().out
    filled(stack, 4)
    exec(to_file, names)  # noqa: S102
    assert "4 tasks in the inbox" in capsys.readouterr().out
    with closing(open_store("sqlite:///other.sqlite3", shards=None)) as store:
        assert len(store.read_inbox(0, 10)) == 4
    with closing(open_existing_store(stack.app)) as store:
        assert store.uuid


def test_the_pattern_of_the_page_names_every_key_of_the_wheel_and_no_other(redis_stack: LeavingStack) -> None:
    [pattern] = re.findall(r"redis-cli --scan --pattern '(\S+)'", PAGE)
    stack = redis_stack
    beat = stack.beat()
    stack.wait_for_holder(beat)
    ids = stack.send(3_600, count=2)
    wait_until(lambda: stack.pending() == [2], "the tasks are pending")
    beat.terminate()
    stack.app.wheel.close()
    with closing(open_existing_store(stack.app)) as store:
        assert drain(stack.app, store, to_broker=True).moved == 2
    assert stack.redis.llen("wheel.0") == 0
    left = stack.redis.keys(pattern)
    assert left
    stack.redis.delete(*left)
    assert [key for key in stack.redis.keys("*") if b"wheel" in key] == []
    assert sorted(stack.dispatched()) == sorted(ids), "the tasks stay in their queue"
