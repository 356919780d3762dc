"""Parts of benches and of the processes beside them: an app, and a clock that can be moved.

It imports no test server: the scheduler's memory and its start are measured.
"""

from typing import Any

from celery_wheel import Celery
from celery_wheel.timing import SystemClock

#: Limits of an engine whose clock is moved: no difference of clocks takes its shard.
NO_WATCH: dict[str, Any] = {"max_clock_skew_ms": 10**15}


class MovedClock(SystemClock):
    """This machine's clock, ahead by ``ahead_ms``; the wall clock and the monotonic clock move together."""

    __slots__ = ("ahead_ms",)

    def __init__(self, ahead_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.ahead_ms

    def seconds_until(self, monotonic_ms: int) -> float:
        return super().seconds_until(monotonic_ms - self.ahead_ms)


def make_app(broker: str, store: str, **settings: Any) -> Any:
    app = Celery("bench", broker=broker, set_as_current=False)
    app.conf.update(wheel_store=store, task_ignore_result=True, **settings)
    return app
