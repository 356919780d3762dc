"""The engine of one shard: it accepts messages, keeps them pending and publishes them when they are due.

The life of a message: eta 10.0 s, sent at 0.0 s; the numbers are positions (due_ms, seq) in the main lane::

    ingest      wheel queue ─ peek ─ admit ─ commit ─ trim     row (10 000, 7) is durable: accepted
    prefetch    store ─ slice ─► window ─► timing wheel        the horizon passes (10 000, 7): the row is in memory too
    dispatch    wheel ─ reap ─► ready ─ take ─► chunk          watermark = (10 000, 7): no row is placed at or before it
                chunk ─ guard ─ publish ─ confirm              the message is in the task's own queue: dispatched
    settle      offset, settlement, tally ─ commit             offset = (10 000, 7): it is not published again

An *activity* is one of these, and ``tend``, ``listen``, ``announce`` and ``keep_house``. A *round* is one run of an
activity. A *job* is a pool's thread of work: it runs the rounds of an activity, and waits between.

The modules: one for each activity, and for each thing that activities share, so the folder has more than fifteen. The
engine reads no clock, opens no connection and starts no thread by itself: clock, store and broker are passed in.
"""
