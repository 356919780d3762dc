"""The option ``events``: the events of each shard with a number in (after, upto], and no others."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from celery_wheel.errors import SettingError
from celery_wheel.pipeline.source.options import read_options
from tests.kit.holder import NOW
from tests.spark.stores import MakeUrl, fill, site
from tests.spark.test_archive import add_events, store_events


def test_only_the_given_ranges_of_events_are_read(make_url: MakeUrl) -> None:
    with site(make_url()) as one:
        fill(one)
        middle = one.holder.highest_seq
        add_events(one, NOW + 50)
        new = store_events(one, events=json.dumps({"0": [middle, 2**40]}))
        assert [event[6] for event in new] == ["dispatched", "cancelled"]
        old = store_events(one, events=json.dumps({"0": [0, middle], "1": [0, 2**40], "7": [0, 5]}))
        assert Counter([*old, *new]) == Counter(store_events(one))
        assert store_events(one, events="{}") == []


@pytest.mark.parametrize("text", ["", "[]", "5", '{"0": 5}', '{"0": [1]}', '{"0": [1, "2"]}', '{"-1": [1, 2]}'])
def test_wrong_ranges_are_refused(text: str) -> None:
    with pytest.raises(SettingError, match="events must be like"):
        read_options({"url": "x", "table": "history", "events": text})


def test_pending_tasks_have_no_events() -> None:
    with pytest.raises(SettingError, match="events must go with table=history"):
        read_options({"url": "x", "events": '{"0": [1, 2]}'})
