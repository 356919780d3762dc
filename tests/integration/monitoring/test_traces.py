"""OpenTelemetry's instrumentation of Celery, as released on PyPI: the trace goes on, and no span waits."""

from __future__ import annotations

from typing import Any

from tests.kit.patience import wait_until
from tests.kit.project import read_lines
from tests.kit.stack import Stack

MODULE = "tests.kit.traces"


def test_the_publish_and_the_run_link_the_span_that_sent_the_task(stack: Stack) -> None:
    stack.wait_for_holder(stack.beat(imports=[MODULE], wheel_opentelemetry=True))
    stack.worker("-P", "solo", imports=[MODULE])
    stack.app.send_task("backing_off", ("a",))  # its retry is sent by the worker, a second ahead
    stack.wait_for(counts={"a": 2})

    def spans(name: str) -> list[dict[str, Any]]:
        return [one for one in read_lines(stack.folder / "spans") if one["name"] == name]

    wait_until(lambda: len(spans("run/backing_off")) == 2, "both runs have a span")
    wait_until(lambda: spans("celery_wheel publish"), "the publish has a span")  # a worker may be faster than a confirm
    [sending], [publish] = spans("apply_async/backing_off"), spans("celery_wheel publish")
    first, second = spans("run/backing_off")
    assert sending["parent"] == first["id"]
    assert publish["links"] == [sending["id"]]
    # The message kept its context, of which an older instrumentation makes the run a child.
    assert [*second["links"], second["parent"]][0] == sending["id"]
    assert publish["parent"] is None
    assert publish["trace"] not in {sending["trace"], second["trace"]}
    assert publish["started_ns"] <= publish["ended_ns"]
    assert publish["started_ns"] - first["started_ns"] > 0.9 * 10**9, "the delay of a second is in no span"
