"""The matrix of sent tasks: each with its expected and its actual end."""

from dataclasses import dataclass, field
from typing import Any

from tests.integration.interception import wheel_cases as cases
from tests.kit.stack import Note, Stack


@dataclass
class Matrix:
    stack: Stack
    sent: dict[str, cases.Sent] = field(default_factory=dict)
    expected: dict[str, int] = field(default_factory=dict)
    notes: dict[Any, list[Note]] = field(default_factory=dict)
    wires: list[bytes] = field(default_factory=list)  #: messages in the queue that no worker consumes


def send_ways(found: Matrix, apps: dict[str, Any]) -> None:
    for name, app in apps.items():
        for way, (delay, due_ms) in cases.delays().items():
            tag = f"{name}, {way}"
            found.sent[tag] = cases.Sent(due_ms, app.send_task(cases.NOTE, (tag, 1), **delay))
            found.expected[tag] = 1


def send_wires(app: Any) -> None:
    """Send each message twice, under the same task id."""
    for wire, options in cases.WIRES.items():
        for delay in ({"countdown": 1}, {}):
            options = {"args": ("ü", 1), "kwargs": {"k": None}, **options}
            app.send_task(cases.NOTE, queue=cases.UNREAD, task_id=wire, **options, **delay)


def send_calls(found: Matrix, app: Any) -> None:
    for call, send in cases.CALLS.items():
        due_ms = cases.now_ms() + 1000
        found.sent[call] = cases.Sent(due_ms, send(app, call, {"countdown": 1}))
        send(app, f"native {call}", {})
        times = 2 if call in cases.TWICE else 1
        found.expected |= {call: times, f"native {call}": times}


def raw(stack: Stack, queue: str) -> list[bytes]:
    names = [queue, *(f"{queue}\x06\x16{step}" for step in (3, 6, 9))]
    return [one for name in names for one in stack.redis.lrange(name, 0, -1)]
