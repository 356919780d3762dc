"""Keys and topics, compared with kombu's own code; names and numbers of the offset hash."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.transport.redis import Channel

from celery_wheel.broker import wheel_queue_name
from celery_wheel.broker.redis import keys
from celery_wheel.broker.redis.keys import Layout
from celery_wheel.engine.port import BrokerOffset
from celery_wheel.store.model import MAX_SEQ, ORIGIN, Position

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


# -- the offset ----------------------------------------------------------------------------------------

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
