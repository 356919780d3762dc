"""A card's number in bodies that are broken in many ways: accepted, rejected, cancelled, and looked at by every page.

A user without ``view_payload`` reads it on no page, and it is in no column of text, no line of the log and no metric.
"""

import base64
import json
import logging
import re
import sqlite3
import zlib
from contextlib import closing
from typing import Any

import pytest

from celery_wheel.broker.envelope import encode
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.round import run_round
from celery_wheel.scheduler.remote_control.revoked_state import RevokedState
from celery_wheel.store.model import CANCEL
from celery_wheel.store.ports.pages import Criteria
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.timing import ManualClock
from tests.admin.conftest import ADMIN, Configure, MakeClient, text_of
from tests.kit.holder import NOW
from tests.kit.site import celery_app
from tests.simulation.model_redis import ModelRedis, RedisServer
from tests.unit.broker.test_envelope import envelope

MARK = "4111111111111111"
MARKED = MARK.encode()
READER = QueuedMessageReader(max_message_bytes=10_000)

#: Bodies that are accepted and cannot be opened, or have other types than a task's; and their compression.
BODIES: list[tuple[bytes, str | None]] = [
    (b"\xff" + MARKED, None),
    (b'[["' + MARKED, None),
    (MARKED, None),
    (json.dumps([[MARK], {"card": MARK}, MARK]).encode(), None),
    (json.dumps({"args": MARK, "kwargs": [MARK]}).encode(), None),
    (json.dumps([[MARK], {}, {"chord": MARK, "callbacks": MARK}]).encode(), None),
    (b"[" * 5_000 + MARKED, None),
    (MARKED, "zlib"),
    (zlib.compress(b"\xff" + MARKED), "zlib"),
    (zlib.compress(b'[["' + MARKED * 100_000), "zlib"),
]

#: Changes of messages by which they are rejected.
BROKEN: list[dict[str, Any]] = [
    {"body": MARK + "!!"},
    {"body": [MARK]},
    {"body": MARK * 1_000},
    {"body": MARK * 10_000},
    {"headers": MARK},
    {"properties": [MARK]},
    {"properties": {"body_encoding": MARK}},
    {"content-type": [MARK]},
]


def wire(number: int, opened: bytes = b"[[], {}, {}]", compression: str | None = None, **changes: Any) -> bytes:
    id_ = f"01900000-0000-7000-8000-{number:012d}"
    fields = encode(envelope(id=id_, task_id=f"card-{number}", eta_ms=NOW + 60_000, created_ms=NOW))
    message = {
        "headers": {"task": "proj.pay", "id": f"card-{number}", "compression": compression, "wheel": fields},
        "properties": {"body_encoding": "base64", "correlation_id": f"card-{number}"},
        "body": base64.b64encode(opened).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
    }
    return json.dumps({**message, **changes}).encode()


@pytest.fixture
def after_the_attack(store: SqlStore, conf: Configure, caplog: pytest.LogCaptureFixture) -> SqlStore:
    caplog.set_level(logging.DEBUG)
    conf(result_backend="cache+memory://", wheel_enabled=True)
    clock, server = ManualClock(NOW), RedisServer()
    raws = [wire(n, *one) for n, one in enumerate(BODIES)]
    raws += [wire(100 + n, **changes) for n, changes in enumerate(BROKEN)] + [raws[0][:-30] + MARKED, MARKED * 50]
    server.keys.wheel += map(READER.decode, raws)
    record = RevokedState(celery_app, "wheel@host", lambda: True)
    engine = Engine(0, "host/1/2", store, ModelRedis(server, clock.now_ms), clock, on_cancelled=record)

    def run() -> None:
        for activity in ("tend", "ingest", "prefetch", "dispatch", "settle", "announce", "tend"):
            run_round(getattr(engine, activity)())

    run()
    cancelled = [f"card-{n}" for n in range(len(BODIES) - 2)]
    command = {"id": f"{1:032x}", "task_ids": cancelled, "actor": "ann", "reason": "fraud"}
    store.put_inbox(0, [(CANCEL, json.dumps(command).encode())])
    for _ in range(3):
        run()
        clock.advance(1_000)
    kinds = [one.kind for one in store.browse.outcomes(["cancelled"], Criteria(), limit=100).items]
    assert len(kinds) == len(cancelled)
    assert len(store.browse.outcomes(["rejected"], Criteria(), limit=100).items) == len(BROKEN) + 2
    return store


def texts(store: SqlStore) -> list[tuple[str, str]]:
    """Return each text of the store's file, with its table: messages themselves are bytes."""
    found = []
    with closing(sqlite3.connect(store.name)) as connection:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in connection.execute(f"SELECT * FROM {table}"):
                found += [(table, value) for value in row if isinstance(value, str)]
    return found


@pytest.mark.parametrize("kind", ["observer", "dispatcher"])
def test_a_body_is_on_no_page_and_in_no_text(
    client_of: MakeClient, after_the_attack: SqlStore, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    client, store = client_of(kind), after_the_attack
    waiting, seen = [f"{ADMIN}/wheel/", "/admin/"], set[str]()
    while waiting:
        address = waiting.pop()
        if address in seen or len(seen) > 400:
            continue
        seen.add(address)
        response = client.get(address)
        text = text_of(response) if not response.streaming else b"".join(response).decode()
        assert MARK not in text, address
        links = re.findall(r'href="([^"#]+)"', text)
        waiting += [one.replace("&amp;", "&") for one in links if one.startswith(f"{ADMIN}/")]
    pages = {address.split("?")[0].removeprefix(ADMIN) for address in seen}
    assert {"/pending/", "/rejected/", "/history/", "/wheel/"} <= pages
    assert sum(bool(re.fullmatch(r"/pending/\d+/", page)) for page in pages) >= len(BODIES)
    assert client.get(f"{ADMIN}/metrics/").status_code in (200, 403, 404)
    said = [str(vars(record)) for phase in ("setup", "call") for record in caplog.get_records(phase)]
    assert any("cannot be decoded" in one for one in said)
    assert [one[:500] for one in said if MARK in one] == []
    assert [(table, text[:300]) for table, text in texts(store) if MARK in text] == []
