"""A bulk load as a process of its own, apart from the measured scheduler. ``many`` runs it.

::

    python -m tests.benchmarks.loader '{"broker": …, "store": …, "rows": 200000}'
        line on stdin                       begin
        {"count": 200000, "wall_s": 7.1}    the end
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.benchmarks.parts import make_app

#: The span of the etas, which are at least a day ahead.
SPREAD = timedelta(days=30)


def app_and_task(broker: str, store: str) -> tuple[Any, Any]:
    """Return an app, and a task of the usual kind."""
    app = make_app(broker, store)

    def remind(user: int, address: str, *, template: str) -> None: ...

    return app, app.task(name="shop.accounts.tasks.remind_of_trial", shared=False)(remind)


def rows(task: Any, count: int) -> Iterator[tuple[Any, ...]]:
    start, step = datetime.now(UTC) + timedelta(days=1), SPREAD / count
    return ((task, (n, f"user{n}@example.org"), {"template": "trial-ends"}, start + n * step) for n in range(count))


def main(options: dict[str, Any]) -> None:
    app, task = app_and_task(options["broker"], options["store"])
    sys.stdin.readline()
    began = time.perf_counter()
    done = app.wheel.schedule_many(rows(task, options["rows"]))
    print(json.dumps({"count": done.count, "wall_s": time.perf_counter() - began}), flush=True)
    app.wheel.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
