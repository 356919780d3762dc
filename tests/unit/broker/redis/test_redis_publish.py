"""Keys, topics, the lists of a row and the bytes of a message, compared with kombu; the arguments of a chunk."""

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.transport.redis import Channel
from kombu.transport.virtual.exchange import DirectExchange, TopicExchange

from celery_wheel.broker import wheel_queue_name
from celery_wheel.broker.destinations import Destinations
from celery_wheel.broker.redis import keys
from celery_wheel.broker.redis.keys import Layout
from celery_wheel.broker.redis.publish import PublishCall, UnencodableMessage, WireWriter, publish_call
from celery_wheel.broker.redis.routing import KEPT_S, Bindings, BindingTable, RedisRouter
from celery_wheel.engine.port import BrokerOffset
from celery_wheel.store.model import MAX_SEQ, ORIGIN, Position, Row
from tests.kit.chunks import NOW_MS, make_row
from tests.kit.rows import values_of

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
    """Binding sets, the list of their reads, and a clock."""

    def __init__(self, **members: Iterable[bytes] | Exception) -> None:
        self.members = members
        self.seconds = 0.0
        self.reads: list[list[str]] = []
        self.bindings = Bindings(self._read, SEP, lambda: self.seconds)

    def _read(self, exchanges: Sequence[str]) -> list[Iterable[bytes] | Exception]:
        self.reads.append(list(exchanges))
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
    assert len(server.reads) == 2
    server.members["x"] = [member("k", "", "fresh")]
    assert server.queues("x", fresh=True) == server.queues("x") == ("fresh",)


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


def written(row: Row, now_ms: int = NOW_MS) -> bytes:
    return WireWriter(now_ms).write(row, b"tag")


@pytest.mark.parametrize(("left_ms", "expiration"), [(30_000, "30000"), (1, "1"), (0, "0"), (-5_000, "0")])
def test_a_message_equals_that_of_kombu_letter_by_letter(left_ms: int, expiration: str) -> None:
    properties = {
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "delivery_mode": 1,
        "correlation_id": "ä",
        "reply_to": None,
        "priority": 3,
        "delivery_tag": "old",
    }
    parts = {"body": b"\x00\xff", "headers": b'{"a":  1}', "properties": json.dumps(properties).encode()}
    assert written(make_row(1, **parts, expires_ms=NOW_MS + left_ms)) == (
        b'{"body": "AP8=", "content-encoding": "utf-8", "content-type": "application/json", "headers": {"a":  1}, '
        b'"properties": {"correlation_id": "\\u00e4", "reply_to": null, "delivery_mode": 1, "expiration": "%b", '
        b'"delivery_info": {"exchange": "", "routing_key": "mail"}, "priority": 0, "body_encoding": "base64", '
        b'"delivery_tag": "tag"}}' % expiration.encode()
    )


def test_a_message_without_delivery_mode_is_persistent_and_without_content_type_has_null() -> None:
    message = json.loads(written(make_row(1, properties=b"{}", priority=7)))
    assert message["content-type"] is None
    assert message["properties"]["delivery_mode"] == 2
    assert message["properties"]["priority"] == 7


def test_rows_of_one_writer_do_not_mix() -> None:
    writer = WireWriter(NOW_MS)
    rows = [
        make_row(n, exchange=exchange, routing_key=key, priority=priority, properties=properties)
        for n, (exchange, key, priority, properties) in enumerate(
            itertools.product(["", "x"], ["k", "l"], [None, 3], [b"{}", b'{"content_type": "a"}'])
        )
    ]
    for row in [*rows, *rows]:
        assert writer.write(row, b"tag") == written(row)


@pytest.mark.parametrize("properties", [b"", b"{", b"[]", b"null", b"{}x", b'{"a": 1} {}', b"\xff"])
def test_properties_that_are_no_object_are_refused(properties: bytes) -> None:
    with pytest.raises(UnencodableMessage, match="properties"):
        written(make_row(1, properties=properties))


def test_unusual_values_are_written_unchanged() -> None:
    odd: dict[str, Any] = {"content_type": ["a"], "x": {"__type__": "datetime", "__value__": 1}, "y": [1.5, True]}
    message = json.loads(written(make_row(1, properties=json.dumps(odd).encode())))
    assert message["content-type"] == ["a"]
    assert (message["properties"]["x"], message["properties"]["y"]) == (odd["x"], odd["y"])


def chunk_of(rows: Sequence[Row], server: Server | None = None) -> PublishCall:
    return publish_call(rows, RedisRouter(Layout(), (server or Server()).bindings, Destinations().is_reserved), NOW_MS)


def test_the_arguments_of_a_chunk() -> None:
    server = Server(shop=[member("k", "", "a"), member("k", "", "b")])
    rows = [
        make_row(1, routing_key="a", queue="a", priority=6, queue_expires_ms=60_000),
        make_row(2, exchange="all", exchange_type="fanout", routing_key="key"),
        make_row(3, exchange="shop", routing_key="k", priority=6),
        make_row(4, exchange="shop", routing_key="unbound"),
    ]
    chunk = chunk_of(rows, server)
    a, b = b"a\x06\x166", b"b\x06\x166"
    assert chunk.keys() == [a, b, b"a", b"a\x06\x163", b"a\x06\x166", b"a\x06\x169"]
    failed, *rest = chunk.arguments(7)
    assert json.loads(failed) == {"4": "no queue is bound to exchange 'shop' with routing key 'unbound'"}
    assert rest[:4] == [2, 4, 1, 7]
    assert rest[4:10] == ["1,3", 2, 60_000, "3", 1, 0]
    assert rest[10:12] == ["2", b"/0.all/key"]
    bodies = [json.loads(message)["body"] for message in rest[12:]]
    assert bodies == [json.loads(written(rows[n]))["body"] for n in (1, 0, 2, 2)]


@pytest.mark.parametrize(
    ("exchanges", "reads"),
    [
        (["one", "two"] * 5, [["one", "two"]]),
        (["", "all"], []),
        (["one", "unbound"], [["one", "unbound"], ["unbound"]]),
    ],
    ids=["all at once", "none for plain queues", "anew after a refusal"],
)
def test_a_chunk_reads_few_binding_sets(exchanges: list[str], reads: list[list[str]]) -> None:
    server = Server(one=[member("k", "", "a")], two=[member("k", "", "b")])
    kinds = {"all": "fanout"}
    chunk_of(
        [
            make_row(n, exchange=exchange, exchange_type=kinds.get(exchange, "direct"), routing_key="k")
            for n, exchange in enumerate(exchanges)
        ],
        server,
    )
    assert server.reads == reads


def test_a_queue_whose_only_row_cannot_be_encoded_is_not_touched() -> None:
    chunk = chunk_of([make_row(1, properties=b"")])
    assert chunk.keys() == []
    assert set(chunk.failed) == {"1"}


def test_a_name_that_redis_cannot_hold_is_refused() -> None:
    chunk = chunk_of([make_row(1, routing_key="\ud800", queue=None), make_row(2)])
    assert set(chunk.failed) == {"1"}
    assert chunk.keys() == [b"mail"]


def test_the_longest_expiry_of_the_rows_counts() -> None:
    rows = [make_row(n, queue_expires_ms=ms) for n, ms in enumerate([1_000, 5_000, 3_000], start=1)]
    assert [to.expires_ms for to in chunk_of(rows).lists.values()] == [5_000]


def test_a_chunk_changes_no_row() -> None:
    row = make_row(1)
    before = values_of(row)
    chunk_of([row])
    assert values_of(row) == before


OPTIONS: list[dict[str, Any]] = [
    {},
    {"priority_steps": [0]},
    {"priority_steps": list(range(10))},
    {"priority_steps": [2, 5], "sep": ":"},
    {"fanout_prefix": False, "fanout_patterns": False},
    {"fanout_prefix": "/app.{db}.", "sep": "|"},
]


def kombu_channel(options: dict[str, Any], db: int) -> Any:
    """A channel after ``__init__`` and ``_get_pool``, without a connection."""
    channel = Channel.__new__(Channel)
    for name, value in options.items():
        setattr(channel, name, value)
    if not channel.fanout_prefix:
        channel.keyprefix_fanout = ""
    elif isinstance(channel.fanout_prefix, str):
        channel.keyprefix_fanout = channel.fanout_prefix
    channel.keyprefix_fanout = channel.keyprefix_fanout.format(db=db)
    return channel


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("priority", [None, -1, 0, 1, 2, 3, 5, 6, 9, 10, 255])
def test_lists_equal_those_of_kombu(options: dict[str, Any], priority: int | None) -> None:
    channel = kombu_channel(options, 0)
    clamped = channel._get_message_priority({"properties": {"priority": priority}})
    layout = Layout.from_options(options, 0)
    assert layout.list_key("mail", priority) == channel._q_for_pri("mail", clamped)
    assert layout.list_keys("mail") == [channel._q_for_pri("mail", step) for step in channel.priority_steps]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("routing_key", ["", "k"])
def test_topics_equal_those_of_kombu(options: dict[str, Any], routing_key: str) -> None:
    layout = Layout.from_options(options, 3)
    assert layout.topic("all", routing_key) == kombu_channel(options, 3)._get_publish_topic("all", routing_key)


def test_the_binding_key_equals_that_of_kombu() -> None:
    assert Layout().binding_key("news") == Channel.keyprefix_queue % "news"


def test_the_global_prefix_comes_first() -> None:
    layout = Layout.from_options({"global_keyprefix": "app:"}, 0)
    assert layout.list_key("mail", 9) == "app:mail\x06\x169"
    assert layout.binding_key("news") == "app:_kombu.binding.news"
    assert layout.topic("all", "") == "app:/0.all"


def test_the_names_of_queues_and_keys_are_stable() -> None:
    assert wheel_queue_name("wheel", 3) == "wheel.3"
    assert keys.offset_key("app:", "wheel", 3) == "app:wheel.offset.3"


positions = st.builds(Position, st.integers(0, MAX_SEQ), st.integers(0, MAX_SEQ))


@given(positions, positions)
def test_positions_as_text_compare_as_positions(one: Position, other: Position) -> None:
    assert (keys.encode_position(one) < keys.encode_position(other)) == (one < other)
    assert keys.decode_position(keys.encode_position(one).encode()) == one


@pytest.mark.parametrize("value", [-1, 10**19])
def test_a_number_that_would_compare_wrongly_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match=re.escape(f"epoch must be a number of at most 19 digits, got {value}")):
        keys.encode_number("epoch", value)


def test_lanes_are_read_from_a_hash_with_other_fields() -> None:
    fields = [b"uuid", b"u", b"epoch", b"1", b"lane:0", keys.encode_position(Position(5, 6)).encode()]
    fields += [
        b"failed:0",
        b'{"7": "\xff\xc3\xa4"}',
        b"set:0",
        b"9",
        b"lane:12",
        keys.encode_position(ORIGIN).encode(),
    ]
    expected = {0: BrokerOffset(Position(5, 6), {7: "\N{REPLACEMENT CHARACTER}ä"}), 12: BrokerOffset(ORIGIN, {})}
    assert keys.read_lanes(fields) == expected
