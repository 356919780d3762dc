"""The router between hosts: a process that holds the TUN device of each host and passes packets on by rules.

::

    host 1 ── tun ─┐
    host 2 ── tun ─┼─ router      one line of standard input replaces all rules:
    host 3 ── tun ─┘              [{"from": 1, "to": 2, "kind": "loss", "part": 0.05}, …]

    drop     nothing passes, and no answer comes: a black hole
    delay    each packet comes ``ms`` ± ``spread`` later, so packets overtake each other
    loss     ``part`` of the packets is dropped
    reset    a packet of TCP is answered by a reset

A rule is for one direction. The router needs no module of the kernel beyond TUN (``tc netem`` is often absent). The
last part of a host's address is its number.
"""

import heapq
import json
import os
import random
import select
import socket
import struct
import sys
import time
from typing import Any

#: The longest packet; devices have Ethernet's 1,500.
MTU = 2_048

#: The places of an IPv4 header.
_SOURCE, _TARGET, _PROTOCOL = slice(12, 16), slice(16, 20), 9

_SYN, _FIN, _RST, _ACK = 2, 1, 4, 16


class Router:
    """Args: devices: descriptor of the TUN device of each host, by its number."""

    def __init__(self, devices: dict[int, int], rng: random.Random) -> None:
        self._devices, self._rng = devices, rng
        self._rules: dict[tuple[int, int], dict[str, Any]] = {}
        self._held: list[tuple[float, int, int, bytes]] = []  #: (due_s, number, target, packet)
        self._count = 0

    def run(self) -> None:
        """Pass packets on until standard input ends."""
        poll = select.poll()
        for source in (sys.stdin.fileno(), *self._devices.values()):
            poll.register(source, select.POLLIN)
        while True:
            wait_ms = max(0.0, self._held[0][0] - time.monotonic()) * 1_000 if self._held else None
            for source, _ in poll.poll(wait_ms):
                if source != sys.stdin.fileno():
                    self._take(os.read(source, MTU))
                elif line := sys.stdin.buffer.readline():
                    self._rules = {(one["from"], one["to"]): one for one in json.loads(line)}
                    print("ruled", flush=True)
                else:
                    return
            while self._held and self._held[0][0] <= time.monotonic():
                self._send(*heapq.heappop(self._held)[2:])

    def _take(self, packet: bytes) -> None:
        if packet[0] >> 4 != 4:  # the kernel's own questions of IPv6
            return
        source, target = packet[_SOURCE][3], packet[_TARGET][3]
        rule = self._rules.get((source, target), {})
        kind = rule.get("kind")
        if kind == "reset":
            if answer := reset(packet):
                self._send(source, answer)
        elif kind == "delay":
            due_s = time.monotonic() + (rule["ms"] + self._rng.uniform(-1, 1) * rule["spread"]) / 1_000
            self._count += 1
            heapq.heappush(self._held, (due_s, self._count, target, packet))
        elif kind != "drop" and not (kind == "loss" and self._rng.random() < rule["part"]):
            self._send(target, packet)

    def _send(self, target: int, packet: bytes) -> None:
        if target in self._devices:  # else broadcast
            os.write(self._devices[target], packet)


def reset(packet: bytes) -> bytes | None:
    """Return the reset by which the target of a packet would refuse it; None for a reset, and for what is not TCP."""
    begin = (packet[0] & 15) * 4
    if packet[_PROTOCOL] != socket.IPPROTO_TCP:
        return None
    source, target, number, acknowledged, offset, flags = struct.unpack_from("!HHIIBB", packet, begin)
    if flags & _RST:
        return None
    size = len(packet) - begin - (offset >> 4) * 4 + bool(flags & _SYN) + bool(flags & _FIN)
    answers = (number + size) % 2**32
    segment = struct.pack(
        "!HHIIBBHHH", target, source, acknowledged if flags & _ACK else 0, answers, 5 << 4, _RST | _ACK, 0, 0, 0
    )
    ends = packet[_TARGET] + packet[_SOURCE]
    tcp = _checksum(ends + struct.pack("!HH", socket.IPPROTO_TCP, len(segment)) + segment)
    segment = segment[:16] + tcp + segment[18:]
    head = struct.pack("!BBHHHBBH", 69, 0, 20 + len(segment), 0, 0, 64, socket.IPPROTO_TCP, 0) + ends
    return head[:10] + _checksum(head) + head[12:] + segment


def _checksum(data: bytes) -> bytes:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", ~total & 0xFFFF)


if __name__ == "__main__":
    Router({int(number): device for number, device in json.loads(sys.argv[1]).items()}, random.Random(7)).run()
