"""The header by which a worker reports the end of a message's slot in its group, on every broker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from celery_wheel.store.model import MAX_SEQ, ORIGIN, Row
from celery_wheel.store.schedule_model import OCCURRENCE, RUN, SLOT
from tests.kit.chunks import EPOCH, SHARD, make_chunk, make_row

CELERYS = {"lang": "py", "task": "shop.remind", "id": "t-1", "origin": "ü \U0001f40d", "timelimit": [None, 1.5]}

#: The headers of a row, and those of its message, less the slot.
HEADERS: dict[str, dict[str, Any]] = {
    "no headers": {},
    "a call": CELERYS,
    "a retry, with the slot of the message before it": {**CELERYS, "retries": 1, SLOT: 77},
    "a retry whose own headers quote the name": {**CELERYS, "headers": {SLOT: 5, "x": f'"{SLOT}": 6'}, SLOT: 77},
    "an occurrence": {RUN: 12, **CELERYS, OCCURRENCE: {"schedule": "report"}},
    "a retry of an occurrence": {**CELERYS, OCCURRENCE: {"schedule": "report"}, RUN: 11, SLOT: 77},
    "a value of the user's": {**CELERYS, SLOT: "mine"},
}


def published(peer: Any, *rows: Row) -> list[dict[str, Any]]:
    edge = peer.edge()
    edge.adopt(SHARD, EPOCH)
    chunk = make_chunk(0, 9, rows)
    if edge.fences:
        edge.set_offset(SHARD, EPOCH, 0, ORIGIN)
        assert edge.publish(chunk).failed == {}
    else:
        assert edge.publish(chunk, lambda: True).failed == {}
    found: list[dict[str, Any]] = peer.headers()
    return found


@pytest.mark.parametrize("row_id", [12, MAX_SEQ])
@pytest.mark.parametrize("what", HEADERS)
def test_a_row_that_reports_is_published_with_its_own_id(peer: Any, what: str, row_id: int) -> None:
    if not hasattr(peer, "headers"):
        return  # a model publishes rows
    headers = HEADERS[what]
    row = make_row(row_id, headers=json.dumps(headers).encode())
    row.reports = True
    assert published(peer, row) == [{**headers, SLOT: row_id}]


def test_other_rows_are_published_as_they_are(peer: Any) -> None:
    if not hasattr(peer, "headers"):
        return
    rows = [make_row(number, headers=json.dumps(one).encode()) for number, one in enumerate(HEADERS.values(), 1)]
    assert published(peer, *rows) == list(HEADERS.values())
