"""The one question the example asks of the wheel itself: how many tasks has it dispatched?

It reads the store's own records, one a settlement, which outlive the scheduler; the figures in
``celery wheel status`` count from the start of the present holder.
"""

from celery import current_app
from sqlalchemy import create_engine, func, select

from celery_wheel.errors import StoreUnusable
from celery_wheel.store import open_store
from celery_wheel.store.schema import batch


def dispatched_since(since_ms: int) -> int | None:
    """Tasks that left the wheel since that instant; None while there is no store."""
    url = current_app.conf.wheel_store
    try:
        open_store(url, shards=None, create=False).close()  # connecting would make an empty file
    except StoreUnusable:
        return None
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            total = select(func.coalesce(func.sum(batch.c.count), 0)).where(batch.c.dispatched_ms >= since_ms)
            return int(connection.scalar(total) or 0)
    finally:
        engine.dispose()
