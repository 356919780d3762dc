"""How fast a wheel queue takes and gives messages as a classic queue and as a quorum queue, by turns in one run.

    python -m tests.replicas.measure --count 20000 --turns 3

The nodes are three, on one machine. The messages are real ones, made once. A queue of another type than the wheel's is
declared by hand, and the scheduler reads it with a warning.
"""

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import amqp
import kombu

from tests.kit.patience import wait_until
from tests.kit.processes import kill_all
from tests.kit.stack import Stack
from tests.replicas.cluster import Cluster

KINDS = ("classic", "quorum")


def messages(stack: Stack, count: int) -> list[Any]:
    """Return messages for a wheel queue, as a producer sends them, and leave the queue empty."""
    stack.send(36_000, count)
    with closing(stack.app.connection_for_read()) as connection:
        channel: Any = connection.default_channel
        found = []
        while len(found) < count:
            if (one := channel.basic_get("wheel.0", no_ack=True)) is not None:
                found.append(amqp.Message(one.body, **one.properties))
        return found


def put(url: str, queue: str, kind: str, found: list[Any]) -> float:
    """Declare the queue and publish the messages; returns messages a second, all confirmed."""
    with kombu.Connection(url, transport_options={"confirm_publish": False}) as connection:
        channel: Any = connection.default_channel
        channel.queue_declare(queue, durable=True, auto_delete=False, arguments={"x-queue-type": kind})
        channel.confirm_select()
        acked = []
        channel.events["basic_ack"].add(lambda tag, multiple: acked.append((tag, multiple)))
        began_s = time.monotonic()
        for one in found:
            channel._basic_publish(one, routing_key=queue)
        while not any(tag >= len(found) for tag, _ in acked):
            connection.drain_events(timeout=60)
        return len(found) / (time.monotonic() - began_s)


def take(stack: Stack, name: str, count: int) -> float:
    """Let a scheduler accept the messages; returns messages a second, from its first look at the store to the last."""
    beat = stack.beat(name)
    stack.wait_for_holder(beat)
    wait_until(lambda: sum(stack.pending()) > 0, "the first are accepted", 60)
    began_s, first = time.monotonic(), sum(stack.pending())
    wait_until(lambda: sum(stack.pending()) == count, "all are accepted", 120)
    rate = (count - first) / (time.monotonic() - began_s) if first < count else float("inf")
    beat.terminate()
    return rate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.replicas.measure", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    rates: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="replicas-") as temporary:
        folder = Path(temporary)
        try:
            with Cluster(folder / "rabbitmq") as cluster:
                url = cluster.nodes[0].url
                with Stack(folder / "producer", url, broker_transport_options={"confirm_publish": True}) as stack:
                    found = messages(stack, options.count)
                for turn in range(options.turns):
                    for kind in KINDS:
                        name = f"{kind}{turn}"
                        put_s = put(url, f"{name}.0", kind, found)
                        with Stack(folder / name, url, wheel_namespace=name) as stack:
                            take_s = take(stack, name, options.count)
                        rates.setdefault((kind, "put"), []).append(put_s)
                        rates.setdefault((kind, "take"), []).append(take_s)
                        print(f"{name}: {put_s:,.0f} messages/s put, {take_s:,.0f} accepted", flush=True)
        finally:
            kill_all()
    for doing in ("put", "take"):
        classic, quorum = (statistics.median(rates[kind, doing]) for kind in KINDS)
        print(f"{doing}: classic {classic:,.0f} /s, quorum {quorum:,.0f} /s, ratio {quorum / classic:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
