"""The matrix is sent once, to one stack; each test looks at its own part of what came of it."""

import gc
from collections.abc import Iterator

import pytest

from tests.integration.interception import wheel_cases as cases
from tests.integration.interception.wheel_matrix import Matrix, send_calls, send_ways, send_wires
from tests.integration.interception.wheel_stack import Stack
from tests.servers import RedisServer

#: Seconds for all tasks to have run. They are due within about 3 s; the rest is for starting on a busy machine.
ALL_RUN_S = 60


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("interception")
    with RedisServer(folder / "redis") as server:
        processes = Stack(server, folder)
        try:
            processes.start()
            yield processes
        finally:
            processes.stop()


@pytest.fixture(scope="module")
def matrix(stack: Stack) -> Matrix:
    """Everything sent, everything run, and then one more, so that a second run would have been seen."""
    found = Matrix(stack)
    apps = {name: make(stack.server.url) for name, make in cases.APPS.items()}
    stack.run("call", "call", cases.NOTE, "--args", '["celery call"]', "--countdown", "1")
    found.expected["celery call"] = 1
    send_ways(found, apps)
    send_calls(found, apps["default"])
    send_wires(apps["default"])
    for scene, (send, counts) in cases.SCENES.items():
        found.sent[scene] = send(apps["default"])
        found.expected |= counts
    stack.wait_for(found.expected, ALL_RUN_S)
    apps["default"].send_task(cases.NOTE, ("the last",), countdown=0.5)
    stack.wait_for({"the last": 1, "from beat": 2}, ALL_RUN_S)
    found.notes = stack.notes()
    found.wires = stack.raw(cases.UNREAD)
    found.waiting = stack.client.llen("wheel.0")
    found.unacked = stack.client.hlen("unacked")
    for sent in found.sent.values():
        sent.settle()
    for app in apps.values():  # a result talks to the server when it is forgotten: now, while there is one
        app.backend._pending_results.concrete.clear()
        app.close()
    gc.collect()
    return found
