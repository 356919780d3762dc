"""Hosts on one machine: a network namespace each, with a router between them that can be told to fail.

::

    with Network(folder, "store", "broker", "a") as network:
        network.address("store")                     10.77.0.1: the others reach it through the router
        with network.on("store"):                    this thread is on that host, and so is each process it starts
            server.start()
        network.fault([Fault("a", "store")])         replaces all faults; [] heals the network

A namespace has no name: it ends with its processes and the network. A host reaches its own servers by 127.0.0.1, which
no fault touches; the judge looks at a server from the server's own host. Namespaces and devices need root, or else the
capabilities CAP_SYS_ADMIN and CAP_NET_ADMIN.
"""

import ctypes
import fcntl
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import pytest

from tests.kit.patience import wait_until
from tests.kit.processes import Process, python

_CLONE_NEWNET = 0x4000_0000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x4004_54CA, 1, 0x1000

NETWORK = "10.77.0"


@dataclass(frozen=True)
class Fault:
    """A fault of one direction, or of both."""

    source: str
    target: str
    kind: str = "drop"  #: see ``router``
    both: bool = True

    #: 200 ms ± 100, and one packet of twenty.
    VALUES = {"ms": 200, "spread": 100, "part": 0.05}  # noqa: RUF012


def _call(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)


def _own() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


@contextmanager
def _in(namespace: int) -> Iterator[None]:
    """Let this thread be in a namespace; its sockets stay there."""
    before = _own()
    try:
        _call("setns", namespace, _CLONE_NEWNET)
        try:
            yield
        finally:
            _call("setns", before, _CLONE_NEWNET)
    finally:
        os.close(before)


@cache
def _why_not() -> str:
    """Return why this process cannot make hosts; empty where it can."""
    if sys.platform != "linux" or not Path("/dev/net/tun").exists():
        return "/dev/net/tun"
    try:
        namespace, device = _new_host(f"{NETWORK}.254")
    except (OSError, subprocess.CalledProcessError) as error:
        return f"iproute2, and the right to make network namespaces ({error})"
    os.close(device)
    os.close(namespace)
    return ""


def _new_host(address: str) -> tuple[int, int]:
    """Return a new namespace and its TUN device, as descriptors."""
    before = _own()
    try:
        _call("unshare", _CLONE_NEWNET)
        try:
            device = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"wheel", _IFF_TUN | _IFF_NO_PI))
            for command in ("link set lo up", f"addr add {address}/24 dev wheel", "link set wheel up"):
                subprocess.run(["ip", *command.split()], check=True, capture_output=True)  # noqa: S607
            return _own(), device
        finally:
            _call("setns", before, _CLONE_NEWNET)
    finally:
        os.close(before)


class Network:
    """Hosts of these names, from the start of the router to its end."""

    def __init__(self, folder: Path, *hosts: str) -> None:
        self._folder = folder
        self._numbers = {name: number for number, name in enumerate(hosts, 1)}
        self._namespaces: dict[str, int] = {}
        self._stops = ExitStack()
        self._router: Process
        self._told = 0

    def __enter__(self) -> Self:
        if why := _why_not():
            pytest.skip(f"hosts need {why}")  # in CI too: it is no server that could be installed
        self._folder.mkdir(parents=True, exist_ok=True)
        devices: dict[str, int] = {}
        for name in self._numbers:
            self._namespaces[name], devices[name] = _new_host(self.address(name))
            self._stops.callback(os.close, self._namespaces[name])
        by_number = {self._numbers[name]: device for name, device in devices.items()}
        arguments = ("-m", "tests.network.router", json.dumps(by_number))
        log = self._folder / "router.log"
        self._router = python(log, *arguments, stdin=True, pass_fds=tuple(devices.values()))
        self._stops.callback(self._router.kill)
        for device in devices.values():
            os.close(device)
        self.fault([])
        return self

    def __exit__(self, *_: object) -> None:
        self._stops.close()

    def address(self, host: str) -> str:
        return f"{NETWORK}.{self._numbers[host]}"

    @contextmanager
    def on(self, host: str) -> Iterator[None]:
        with _in(self._namespaces[host]):
            yield

    def fault(self, faults: Sequence[Fault]) -> None:
        """Replace all faults; returns when the router has them."""
        rules: list[dict[str, Any]] = []
        for one in faults:
            ends = self._numbers[one.source], self._numbers[one.target]
            for source, target in (ends, ends[::-1]) if one.both else (ends,):
                rules.append({"from": source, "to": target, "kind": one.kind, **Fault.VALUES})
        self._router.tell(json.dumps(rules))
        self._told += 1
        wait_until(lambda: self._router.said().count("ruled") >= self._told, "the router has its rules")
