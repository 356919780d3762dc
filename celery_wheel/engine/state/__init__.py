"""One holder's memory of one shard in one epoch: lanes, the window on the store, gates, tombstones, revoked stamps.

::

    ShardState ─┬─ Lanes ─── Lane     offset, watermark, horizon, ready rows, chunk in flight, settlement
     one lock   ├─ Window             rows in memory, and the timing wheel of those that are not due
                ├─ Gates              paused or metered tasks and queues
                ├─ TombstoneFilter    ids that may have a tombstone in the store
                └─ RevokedStamps      of this process, shared by its engines
"""
