"""The examples of docs/leaving.md run, and its pattern names every key."""

import re
from contextlib import closing

from celery_wheel.operations.drain import drain, open_existing_store
from celery_wheel.producer.rescue import Rescue
from tests.integration.drain.conftest import LeavingStack
from tests.kit.manual import page
from tests.kit.patience import wait_until

PAGE = page("leaving.md")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_examples_run(redis_stack: LeavingStack) -> None:
    setting, step = EXAMPLES
    exec(setting + step, {"app": redis_stack.app})  # noqa: S102 - our own page
    assert Rescue in redis_stack.app.steps["consumer"]


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
