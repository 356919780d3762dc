"""Three nodes of RabbitMQ on one host, with ``pause_minority``; the tasks' own queue is a quorum queue.

::

    one, two, three     one epmd and one cookie; each with a port, a name and a folder of its own
    cut                 the node has another cookie for its peers, and the connections to them end: a partition
    limits              the alarms of memory and disk, by limits that no machine keeps
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from tests.kit.patience import wait_until
from tests.kit.servers import free_port
from tests.kit.servers.rabbit import RabbitServer
from tests.replicas.stand import Account, Stand

#: Tasks that are sent between two faults, and seconds that a fault lasts.
CALM, FAULT_S = 80, 8

QUORUM = {"x-queue-type": "quorum"}
TYPE = {"task_default_queue_type": "quorum"}

_CUT = "lists:foreach(fun(N) -> erlang:set_cookie(N, cut), erlang:disconnect_node(N) end, nodes())."
_WHOLE = "lists:foreach(fun(N) -> erlang:set_cookie(N, erlang:get_cookie()) end, [{0}])."


class Node(RabbitServer):
    options = "cluster_partition_handling = pause_minority\n"

    def __init__(self, folder: Path, shared: Path, epmd: int) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.ports = {"epmd": epmd}
        self._shared = shared

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), "HOME": str(self._shared)}

    @property
    def name(self) -> str:
        return self._environment()["RABBITMQ_NODENAME"]

    def set_all(self, **values: int) -> None:
        for name, value in values.items():
            self.ctl("eval", f"application:set_env(rabbit, {name}, {value}).")


class Cluster:
    def __init__(self, folder: Path) -> None:
        self._opened = ExitStack()
        epmd, shared = free_port(), folder / "shared"
        shared.mkdir(parents=True)
        self.nodes = [Node(folder / name, shared, epmd) for name in ("one", "two", "three")]
        for node in self.nodes:
            self._opened.enter_context(node)
            if node is not self.nodes[0]:
                for command in (("stop_app",), ("join_cluster", self.nodes[0].name), ("start_app",)):
                    node.ctl(*command)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def url(self) -> str:
        return ";".join(node.url for node in self.nodes)

    @contextmanager
    def killed(self, node: Node) -> Iterator[None]:
        node.kill()
        yield
        node.start()

    @contextmanager
    def cut(self, node: Node) -> Iterator[None]:
        """Cut a node off from the others: it pauses, since it is the minority."""
        node.ctl("eval", _CUT)
        yield
        others = ", ".join(f"'{one.name}'" for one in self.nodes if one is not node)
        node.ctl("eval", _WHOLE.format(others))
        wait_until(lambda: node.answers(node.port), "the node is back", 60)

    @contextmanager
    def memory_alarm(self) -> Iterator[None]:
        self.nodes[1].ctl("set_vm_memory_high_watermark", "0.00001")
        yield
        self.nodes[1].ctl("set_vm_memory_high_watermark", "0.4")

    @contextmanager
    def disk_alarm(self) -> Iterator[None]:
        self.nodes[2].ctl("set_disk_free_limit", "100000GB")
        yield
        self.nodes[2].ctl("set_disk_free_limit", "50MB")


def suffer(folder: Path, seed: int, rounds: int, queue_type: str = "classic") -> Account:
    """Let the node of the wheel queues die and be cut off, and alarms stop publishers, and account for each task.

    The third node always runs: the consumer is there.
    """
    store, costs = f"sqlite:///{folder}/wheel.sqlite3", dict[str, int]()
    with (
        Cluster(folder / "rabbitmq") as cluster,
        Stand(
            folder / "stand",
            cluster.url,
            store,
            seed,
            lambda: cluster.nodes[2].url,
            QUORUM,
            wheel_queue_type=queue_type,
            **TYPE,
        ) as stand,
    ):
        home = _home(cluster, "wheel.0")
        faults: Mapping[str, Callable[[], Any]] = {
            "the wheel queue's node killed": lambda: cluster.killed(home),
            "the wheel queue's node cut off": lambda: cluster.cut(home),
            "another node killed": lambda: cluster.killed(next(one for one in cluster.nodes if one is not home)),
            "memory alarm": cluster.memory_alarm,
            "disk alarm": cluster.disk_alarm,
        }
        for _ in range(rounds):
            for name, fault in faults.items():
                stand.await_load(CALM)
                with fault():
                    before, until_s = _progress(stand), time.monotonic() + FAULT_S
                    while time.monotonic() < until_s:
                        time.sleep(0.1)
                    sent, arrived = (now - then for now, then in zip(_progress(stand), before, strict=True))
                print(f"{name}: {sent} sent, {arrived} arrived meanwhile", flush=True)
                costs[name] = max(costs.get(name, 0), round(stand.await_recovery() * 1_000))
        account = stand.settle(f"a cluster of three nodes of RabbitMQ, wheel queues of type {queue_type}")
    account.counts["faults"] = rounds * len(faults)
    account.counts.update({f"ms until a new task arrived after {name}": ms for name, ms in costs.items()})
    return account


def _progress(stand: Stand) -> tuple[int, int]:
    return len(stand.sent()), len(stand.consumer.arrived)


def _home(cluster: Cluster, queue: str) -> Node:
    """Return the node that has a classic queue."""
    listed = cluster.nodes[0].ctl("list_queues", "--silent", "name", "pid")
    [line] = [one for one in listed.splitlines() if one.split("\t")[0] == queue]
    return next(node for node in cluster.nodes if node.name in line)
