"""The router's faults, each shown by plain sockets of two hosts."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.network.hosts import Fault, Network

PORT = 4_242


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    with Network(tmp_path, "a", "b", "c") as network:
        yield network


@pytest.fixture
def pair(network: Network) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Return a connection from host a to host b, by its two ends."""
    with network.on("b"):
        listener = socket.create_server((network.address("b"), PORT))
    with network.on("a"):
        here = socket.create_connection((network.address("b"), PORT), 5)
    there, _ = listener.accept()
    there.settimeout(20)
    with listener, here, there:
        yield here, there


Pair = tuple[socket.socket, socket.socket]


def test_hosts_reach_each_other_by_the_router(network: Network, pair: Pair) -> None:
    here, there = pair
    here.sendall(b"x")
    assert there.recv(1) == b"x"
    with network.on("a"), pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", PORT), 5)


def test_a_dropped_direction_leaves_the_other_one(network: Network, pair: Pair) -> None:
    here, there = pair
    network.fault([Fault("a", "b", both=False)])
    there.sendall(b"x")
    assert here.recv(1) == b"x"
    here.sendall(b"y")
    there.settimeout(0.5)
    with pytest.raises(TimeoutError):
        there.recv(1)
    network.fault([])
    there.settimeout(10)
    assert there.recv(1) == b"y", "TCP sends again"


def test_a_fault_is_of_one_pair(network: Network, pair: Pair) -> None:
    here, there = pair
    network.fault([Fault("a", "c"), Fault("b", "c")])
    here.sendall(b"x")
    assert there.recv(1) == b"x"


def test_packets_are_delayed(network: Network, pair: Pair) -> None:
    here, there = pair
    network.fault([Fault("a", "b", "delay")])
    began_s = time.monotonic()
    here.sendall(b"x")
    assert there.recv(1) == b"x"
    assert time.monotonic() - began_s >= 0.1


def test_lost_packets_are_sent_again(network: Network, pair: Pair) -> None:
    here, there = pair
    network.fault([Fault("a", "b", "loss")])
    for _ in range(100):
        here.sendall(b"x" * 1_000)
        assert there.recv(1_000) == b"x" * 1_000


def test_a_reset_ends_connections_and_refuses_new_ones(network: Network, pair: Pair) -> None:
    here, _ = pair
    network.fault([Fault("a", "b", "reset")])
    here.sendall(b"x")
    with pytest.raises(ConnectionResetError):
        here.recv(1)
    with network.on("a"), pytest.raises(ConnectionRefusedError):
        socket.create_connection((network.address("b"), PORT), 5)
