"""Binding sets: matches compared with kombu's exchanges, and the time for which a table is kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from kombu.transport.virtual.exchange import DirectExchange, TopicExchange

from celery_wheel.broker.redis.routing import KEPT_S, Bindings, BindingTable

SEP = "\x06\x16"
KEYS = ["a", "a.*", "a.#", "#", "*", "*.b", "a.b", "a.*.c", "#.c", "a+b", "a.b$"]
ROUTED = ["", "a", "a.b", "a.b.c", "b", "x.b", "a.x.c", "aab", "a+b", "a.b$", "a.b\n"]


@pytest.mark.parametrize(("kind", "kombu_exchange"), [("direct", DirectExchange), ("topic", TopicExchange)])
@pytest.mark.parametrize("routing_key", ROUTED)
def test_matches_equal_those_of_kombu(kind: str, kombu_exchange: Any, routing_key: str) -> None:
    exchange = kombu_exchange(None)
    bound = [exchange.prepare_bind(f"q{key}", "news", key, None) for key in KEYS]
    table = BindingTable(0.0, [(key, pattern or "", queue) for key, pattern, queue in bound])
    expected = exchange.lookup([(k, p or "", q) for k, p, q in bound], "news", routing_key, None)
    assert set(table.queues(kind, routing_key)) == expected


def test_a_queue_bound_twice_gets_one_message() -> None:
    assert BindingTable(0.0, [("a", "^a$", "q"), ("#", "^.*?$", "q")]).queues("topic", "a") == ("q",)


class Server:
    def __init__(self, **members: Iterable[bytes] | Exception) -> None:
        self.members = members
        self.seconds = 0.0
        self.reads = 0
        self.bindings = Bindings(self._read, SEP, lambda: self.seconds)

    def _read(self, exchanges: Sequence[str]) -> list[Iterable[bytes] | Exception]:
        self.reads += 1
        return [self.members.get(exchange, ()) for exchange in exchanges]

    def queues(self, exchange: str, fresh: bool = False) -> tuple[str, ...]:
        return self.bindings.tables([exchange], fresh=fresh)[exchange].queues("direct", "k")


def member(*parts: str) -> bytes:
    return SEP.join(parts).encode()


def test_a_table_is_kept_for_a_second_after_its_read() -> None:
    server = Server(x=[member("k", "", "old")])
    assert server.queues("x") == ("old",)
    server.members["x"] = [member("k", "", "new")]
    server.seconds = KEPT_S - 0.001
    assert server.queues("x") == ("old",)
    server.seconds = KEPT_S
    assert server.queues("x") == ("new",)
    assert server.reads == 2


def test_fresh_reads_even_a_kept_table() -> None:
    server = Server(x=[member("k", "", "old")])
    server.queues("x")
    server.members["x"] = [member("k", "", "new")]
    assert server.queues("x", fresh=True) == ("new",)
    assert server.queues("x") == ("new",)


def test_tables_of_unused_exchanges_are_dropped() -> None:
    server = Server()
    for n in range(100):
        server.seconds += 0.1
        server.queues(f"x{n}")
    assert len(server.bindings._tables) <= 11


def test_members_that_are_no_binding_are_skipped() -> None:
    server = Server(
        x=[b"", b"k", member("k", ""), member("k", "", "q", "more"), member("k", "", ""), member("k", "", "q")]
    )
    assert server.queues("x") == ("q",)


def test_an_invalid_pattern_matches_nothing() -> None:
    assert BindingTable(0.0, [("a", "(", "broken"), ("a", "^a$", "sound")]).queues("topic", "a") == ("sound",)


def test_an_unreadable_set_is_a_fault_of_its_exchange_alone() -> None:
    server = Server(x=ValueError("WRONGTYPE"), y=[member("k", "", "q")])
    tables = server.bindings.tables(["x", "y"])
    assert tables["x"].fault == "WRONGTYPE"
    assert tables["y"].queues("direct", "k") == ("q",)
