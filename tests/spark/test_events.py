"""The option ``events``: the events of each shard with a number in (after, upto], and no others."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from celery_wheel.errors import SettingError
from celery_wheel.pipeline.source.options import read_options
from tests.spark.stores import MakeUrl, fill, site
from tests.spark.test_archive import more, of_store
from tests.stores.samples import NOW


def test_ranges_of_events_are_read_and_nothing_else(make_url: MakeUrl) -> None:
    with site(make_url()) as one:
        fill(one)
        middle = one.holder.highest_seq
        more(one, NOW + 50)
        new = of_store(one, events=json.dumps({"0": [middle, 2**40]}))
        assert [event[6] for event in new] == ["dispatched", "cancelled"]
        old = of_store(one, events=json.dumps({"0": [0, middle], "1": [0, 2**40], "7": [0, 5]}))
        assert Counter([*old, *new]) == Counter(of_store(one))
        assert of_store(one, events="{}") == []


@pytest.mark.parametrize("said", ["", "[]", "5", '{"0": 5}', '{"0": [1]}', '{"0": [1, "2"]}', '{"-1": [1, 2]}'])
def test_ranges_that_make_no_sense_are_refused(said: str) -> None:
    with pytest.raises(SettingError, match="events must be like"):
        read_options({"url": "x", "table": "history", "events": said})


def test_what_waits_has_no_events() -> None:
    with pytest.raises(SettingError, match="events must go with table=history"):
        read_options({"url": "x", "events": '{"0": [1, 2]}'})
