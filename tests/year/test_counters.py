"""Numbers that only grow: how long each of them lasts at a rate that no installation reaches."""

import pytest
from sqlalchemy.dialects import postgresql

from celery_wheel.store.model import MAX_SEQ, SHARD_BITS
from celery_wheel.store.schedule_model import LAST_REVISION
from celery_wheel.store.sql import schema
from celery_wheel.store.store_model import EPOCH_LEAP

#: Integers up to this are exact in Lua, which reads epochs in Redis.
EXACT = 2**53


@pytest.mark.parametrize(
    ("last", "per_s", "years"),
    [
        pytest.param(MAX_SEQ >> SHARD_BITS, 10 * 100_000, 1_000, id="seqs, ten for each of 100,000 tasks a second"),
        pytest.param(EXACT, 2, 10**6, id="epochs, a takeover in each round of tend"),
        pytest.param(EXACT // EPOCH_LEAP, 1 / 3_600, 1_000, id="epochs of a store that is claimed every hour"),
        pytest.param(MAX_SEQ, 100_000, 10**5, id="items of the inbox, 100,000 a second"),
        pytest.param(LAST_REVISION, 1, 50, id="revisions of a schedule that is edited every second"),
    ],
)
def test_a_counter_lasts_for_decades(last: int, per_s: float, years: int) -> None:
    assert last / per_s / (366 * 86_400) > years


def test_counters_have_64_bits_on_postgresql_and_revisions_31() -> None:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    kinds = {
        column: str(schema.metadata.tables[table].c[name].type.compile(dialect))
        for column in (
            "wheel_shard.epoch",
            "wheel_shard.seq",
            "wheel_timer.id",
            "wheel_inbox.id",
            "wheel_revision.number",
        )
        for table, _, name in [column.partition(".")]
    }
    assert kinds.pop("wheel_revision.number") == "INTEGER"
    assert LAST_REVISION + 1 == 2**31 - 1
    assert set(kinds.values()) == {"BIGINT"}
