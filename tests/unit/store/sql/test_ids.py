"""Ids come back from their bytes as they were, and no two ids share bytes."""

from __future__ import annotations

import sqlite3
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_wheel.store.sql.schema import UUID_BYTES, bytes_to_task_id, bytes_to_uuid, task_id_to_bytes, uuid_to_bytes

UUIDS = st.uuids().map(str)
#: Task ids that the rule of texts allows, those of fifteen and sixteen bytes among them.
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
NEARLY = UUIDS.flatmap(
    lambda uuid: st.sampled_from([uuid.upper(), uuid.replace("-", ""), f"{{{uuid}}}", uuid[:15], uuid[:16]])
)


@given(one=UUIDS | TEXTS | NEARLY, other=UUIDS | TEXTS | NEARLY)
def test_a_task_id_comes_back_as_it_was(one: str, other: str) -> None:
    assert bytes_to_task_id(task_id_to_bytes(one)) == one
    assert (task_id_to_bytes(one) == task_id_to_bytes(other)) == (one == other)


@given(UUIDS)
def test_a_uuid_takes_sixteen_bytes(uuid: str) -> None:
    assert len(task_id_to_bytes(uuid)) == len(uuid_to_bytes(uuid)) == UUID_BYTES
    assert bytes_to_uuid(uuid_to_bytes(uuid)) == uuid
    assert uuid_to_bytes(uuid.upper()) == UUID(uuid).bytes


@pytest.mark.parametrize("task_id", ["", "a", "x" * 15, "x" * 16, "ü" * 8, "nightly-2026-11-22", str(UUID(int=7))])
def test_sparks_sql_reads_a_task_id_as_it_was(task_id: str) -> None:
    columns = pytest.importorskip("celery_wheel.pipeline.source.statements")
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE TABLE wheel_timer (task_id)")
        database.execute("INSERT INTO wheel_timer VALUES (?)", (task_id_to_bytes(task_id),))
        found = database.execute(f"SELECT {columns.TASK_ID_SQL['sqlite']} FROM wheel_timer t").fetchone()
    database.close()
    assert found == (task_id,)
