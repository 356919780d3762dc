"""The matrix is sent once, to one stack; each test checks its own part of the results."""

import gc
from collections.abc import Iterator

import pytest

from tests.integration.interception import wheel_cases as cases
from tests.integration.interception.wheel_matrix import Matrix, raw, send_calls, send_ways, send_wires
from tests.kit.patience import wait_until
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack

#: Seconds for all tasks to have run. They are due within about 3 s; the rest is for starting.
ALL_RUN_S = 60

OFTEN = {"often": {"task": cases.NOTE, "schedule": 1.0, "args": ["from beat"], "options": {"countdown": 0.3}}}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("interception")
    with RedisServer(folder / "redis") as server:
        settings = {"result_backend": server.url, "worker_prefetch_multiplier": 1, "beat_schedule": OFTEN}
        with Stack(folder, server, queues=cases.QUEUES, **settings) as found:
            found.worker("--pool", "prefork", "--concurrency", "2", "-E")
            found.beat()
            yield found


@pytest.fixture(scope="module")
def matrix(stack: Stack) -> Matrix:
    """Send everything, wait until everything has run, then run one more task, so that a second run would be seen."""
    found = Matrix(stack)
    apps = {name: make(stack) for name, make in cases.APPS.items()}
    stack.celery("call", cases.NOTE, "--args", '["celery call"]', "--countdown", "1")
    found.expected["celery call"] = 1
    send_ways(found, apps)
    send_calls(found, stack.app)
    send_wires(stack.app)
    for scene, (send, counts) in cases.SCENES.items():
        found.sent[scene] = send(stack.app)
        found.expected |= counts
    stack.wait_for(counts=found.expected, seconds=ALL_RUN_S)
    stack.app.send_task(cases.NOTE, ("the last",), countdown=0.5)
    stack.wait_for(counts={"the last": 1, "from beat": 2}, seconds=ALL_RUN_S)
    found.notes = stack.notes()
    found.wires = raw(stack, cases.UNREAD)
    for name in cases.WITH_RESULT:  # a worker stores a result after the note of its task
        wait_until(found.sent[name].result.ready, f"{name} has a result")
    for sent in found.sent.values():
        sent.settle()
    for (
        app
    ) in apps.values():  # a result calls the server when it is forgotten, so it is forgotten while the server lives
        app.backend._pending_results.concrete.clear()
        app.close()
    gc.collect()
    return found
