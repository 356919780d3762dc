"""Failovers of real servers under load: what each loses, and whether the schedulers say so.

::

    python -m tests.replicas --minutes 60            every scenario by turns, each with another seed
    python -m tests.replicas --only sentinel         those whose name has the text, each once without minutes

A scenario prints its account. The exit code is 1 where one was broken.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

from tests.kit.processes import kill_all
from tests.replicas import cluster, postgres, queues, sentinel
from tests.replicas.stand import Account

Scenario = Callable[[Path, int, int], Account]

SCENARIOS: dict[str, Scenario] = {
    "postgresql-synchronous": partial(postgres.promote, synchronous=True),
    "postgresql-synchronous-proxy": partial(postgres.promote, synchronous=True, proxy=True),
    "postgresql-asynchronous": partial(postgres.promote, synchronous=False),
    "postgresql-asynchronous-proxy": partial(postgres.promote, synchronous=False, proxy=True),
    "postgresql-asynchronous-rabbitmq": partial(postgres.promote, synchronous=False, broker="rabbitmq"),
    "redis-sentinel": sentinel.fail_over,
    "rabbitmq-cluster-classic": cluster.suffer,
    "rabbitmq-cluster-quorum": partial(cluster.suffer, queue_type="quorum"),
    "rabbitmq-consumer-timeout": queues.consumer_timeout,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.replicas", description=__doc__)
    parser.add_argument("--minutes", type=float, default=0, help="0: each scenario once")
    parser.add_argument("--only", default="", help="scenarios whose name has this text")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=3, help="failovers of one scenario")
    options = parser.parse_args()
    chosen = [name for name in SCENARIOS if options.only in name]
    if not chosen:
        parser.error(f"no scenario has {options.only!r} in its name: {', '.join(SCENARIOS)}")
    until_s, broken = time.monotonic() + 60 * options.minutes, 0
    for turn in count():
        for name in chosen:
            if (turn or options.minutes) and time.monotonic() >= until_s:
                return int(bool(broken))
            with tempfile.TemporaryDirectory(prefix="replicas-") as temporary:
                Path(temporary).chmod(0o711)  # PostgreSQL is another user, where this one is root
                try:
                    account = SCENARIOS[name](Path(temporary), options.seed + turn, options.rounds)
                finally:
                    kill_all()
            broken += bool(account.broken)
            print(f"{name}, seed {options.seed + turn}: {account}", flush=True)
        if not options.minutes:
            return int(bool(broken))
    return 0


if __name__ == "__main__":
    sys.exit(main())
