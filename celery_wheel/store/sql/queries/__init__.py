"""The queries of the store that run rarely, by room: SQLAlchemy compiles each shape at its first use and keeps it.

::

    bulk_loads    loads, parts and chunks
    handover      whole messages for a drain; the correction of settlements
    maintenance   marks and figures of an archive
    reshard       another number of shards
    setup         the store's own row, and a new shard

The statements that a holder runs in its rounds are prepared: see ``celery_wheel.store.sql.statements``.
"""
