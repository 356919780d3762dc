"""Faults of the network under load: what each costs, and whether anything is lost, early or sent twice.

::

    python -m tests.network.scenario --broker redis --minutes 60 [--seed 7]

    who        victim       one of two schedulers, which holds a shard: another one reaches the server
               all          both schedulers
               client       the host that sends and cancels
    servers    store, broker, or both
    kind       see ``Kind``: a partition of both directions or of one, delay, loss, resets
    seconds    1 to 120

A run takes the combinations in an order of its seed, until its time is over. In some faults the victim gets SIGTERM in
the middle, and starts again afterwards.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from tests.faults.judge import Verdict
from tests.kit.patience import wait_until
from tests.kit.processes import kill_all
from tests.network.hosts import Fault
from tests.network.stack import SCHEDULERS, SHARDS, Hosts
from tests.soak.consumer import now_ms

WHO = ("victim", "all", "client")
SERVERS = (("store",), ("broker",), ("store", "broker"))

#: Name → the router's rule, and its directions as a scheduler sees them.
KINDS = {
    "whole": ("drop", "both"),
    "one-way out": ("drop", "out"),
    "one-way in": ("drop", "in"),
    "delay": ("delay", "both"),
    "loss": ("loss", "both"),
    "reset": ("reset", "both"),
}

#: The kinds that cut a host off from a server.
CUTS = ("whole", "one-way out", "one-way in", "reset")

SECONDS = (1, 10, 60, 120)

#: A fault that lasts this long is longer than every time-out, so the victim is stopped in some of them.
LONG_S = 8

#: How long a recovery is waited for; the stated one is 6 s.
RECOVERY_S = 60.0


@dataclass(frozen=True)
class Trouble:
    who: str
    servers: tuple[str, ...]
    kind: str
    seconds: float
    stops: bool = False  #: whether the victim gets SIGTERM in the middle

    def __str__(self) -> str:
        stops = ", SIGTERM" if self.stops else ""
        return f"{self.who} / {' and '.join(self.servers)} / {self.kind} / {self.seconds:g} s{stops}"

    def faults(self, victim: str) -> Iterator[Fault]:
        rule, direction = KINDS[self.kind]
        hosts = {"victim": (victim,), "all": SCHEDULERS, "client": ("client",)}[self.who]
        for host, server in product(hosts, self.servers):
            ends = (server, host) if direction == "in" else (host, server)
            yield Fault(*ends, rule, both=direction == "both")

    @property
    def is_takeover(self) -> bool:
        """Whether another scheduler can take the victim's shards over meanwhile."""
        return self.who == "victim" and self.kind in CUTS and self.seconds >= LONG_S


@dataclass
class Cost:
    """Seconds, from the begin of the fault; None: it did not happen, or was not looked at."""

    trouble: str
    taken: float | None = None  #: until the victim's shards had another holder
    both: bool = False  #: the victim took itself for a holder after that
    ready: int | None = None  #: the code of /readyz of the victim before the end of the fault
    stopped: float | None = None  #: from SIGTERM to the end of the process
    recovered: float = 0.0  #: from the end of the fault until nothing was overdue, and each shard had a holder
    cancel: float | None = None  #: the longest cancel


def suffer(hosts: Hosts, trouble: Trouble) -> Cost:
    """Carry a fault out, and wait until the system has recovered."""
    wait_until(lambda: hosts.shared() == len(SCHEDULERS), "each scheduler holds a shard", 60)
    victim = next(iter(hosts.held().values()))
    shards = [shard for shard, host in hosts.held().items() if host == victim]
    cost, lines = Cost(str(trouble)), len(hosts.ledger())
    hosts.network.fault(list(trouble.faults(victim)))
    began_s = time.monotonic()

    def over(part: float = 1.0) -> bool:
        return time.monotonic() - began_s >= part * trouble.seconds

    while not over(0.5 if trouble.stops else 0.8):
        held = hosts.held()
        if trouble.is_takeover and cost.taken is None and all(held.get(one, victim) != victim for one in shards):
            cost.taken = time.monotonic() - began_s
            cost.both = _says_it_holds(hosts, victim, shards)
        time.sleep(0.05)
    if trouble.seconds >= LONG_S and trouble.who != "client":
        cost.ready = hosts.page(victim, "readyz")[0]
    if trouble.stops:
        stop_s = time.monotonic()
        hosts[victim].terminate()
        cost.stopped = time.monotonic() - stop_s
    while not over():
        time.sleep(0.05)
    hosts.network.fault([])
    healed_s, healed_ms = time.monotonic(), now_ms()
    while time.monotonic() - healed_s < RECOVERY_S and (len(hosts.held()) < SHARDS or hosts.overdue(healed_ms)):
        time.sleep(0.1)
    cost.recovered = time.monotonic() - healed_s
    if trouble.stops:
        hosts.start_scheduler(victim)
    took = [line["took_ms"] / 1_000 for line in hosts.ledger()[lines:] if "took_ms" in line]
    cost.cancel = max(took, default=None)
    return cost


def _says_it_holds(hosts: Hosts, victim: str, shards: list[int]) -> bool:
    _, text = hosts.page(victim, "metrics")
    return any(f'celery_wheel_holder{{shard="{shard}"}} 1.0' in text for shard in shards)


def troubles(rng: random.Random) -> Iterator[Trouble]:
    """Yield combinations without an end: each once before any comes a second time, the short ones more often first."""
    while True:
        found = [Trouble(*parts) for parts in product(WHO, SERVERS, KINDS, SECONDS)]
        found += [
            Trouble(who, servers, kind, 30, stops=True)
            for who, servers, kind in product(("victim", "all"), SERVERS, ("whole", "one-way in"))
        ]
        found.sort(key=lambda one: rng.random() * one.seconds**0.5)
        yield from found


def figures(costs: list[Cost]) -> list[str]:
    """Return a line of each who, servers and kind."""
    groups: dict[str, list[Cost]] = {}
    for one in costs:
        groups.setdefault(one.trouble.rpartition(" / ")[0], []).append(one)
    lines = []
    for name, found in sorted(groups.items()):
        taken = [one.taken for one in found if one.taken is not None]
        times = f"taken over p50 {statistics.median(taken):.1f} max {max(taken):.1f} s, " if taken else ""
        cancels = [one.cancel for one in found if one.cancel is not None]
        lines.append(
            f"{name}: {len(found)} faults, {times}recovered max {max(one.recovered for one in found):.1f} s, "
            f"cancel max {max(cancels, default=0):.1f} s"
        )
    return lines


def judged(hosts: Hosts, costs: list[Cost]) -> tuple[Verdict, dict[str, object]]:
    """Return the verdict, and what was broken: promises by name, with the first tasks or faults of each."""
    verdict, after_done = hosts.settle()
    broken: dict[str, object] = dict(verdict.broken())
    if after_done:
        broken["ran after their cancel"] = after_done[:3]
    if both := [one.trouble for one in costs if one.both]:
        broken["two holders"] = both[:3]
    return verdict, broken


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.network.scenario", description=__doc__)
    parser.add_argument("--broker", choices=("redis", "rabbitmq"), default="redis")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--longest", type=float, default=SECONDS[-1], help="seconds of the longest fault")
    parser.add_argument("--shortest", type=float, default=SECONDS[0], help="seconds of the shortest fault")
    parser.add_argument("--only", default="", help="faults whose name has this text")
    options = parser.parse_args()
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory(prefix="network-", dir=Path("/dev/shm")) as temporary:  # noqa: S108
        Path(temporary).chmod(0o711)  # PostgreSQL is another user, where this one is root
        try:
            with Hosts(Path(temporary), options.broker, options.seed) as hosts:
                until_s = time.monotonic() + 60 * options.minutes
                for trouble in troubles(random.Random(options.seed)):
                    if options.only not in str(trouble) or not options.shortest <= trouble.seconds <= options.longest:
                        continue
                    if time.monotonic() + trouble.seconds > until_s:
                        break
                    costs.append(suffer(hosts, trouble))
                    print(json.dumps(asdict(costs[-1])), flush=True)
                verdict, broken = judged(hosts, costs)
        finally:
            kill_all()
    print(*figures(costs), f"{options.broker}, seed {options.seed}: {verdict}; broken: {broken or 'none'}", sep="\n")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
