"""The engine of one shard: it accepts messages, keeps them pending and publishes them when they are due.

The life of a message: eta 10.0 s, sent at 0.0 s; the numbers are positions (due_ms, seq) in the main lane::

    ingest      wheel queue ─ peek ─ admit ─ commit ─ trim     row (10 000, 7) is durable: accepted
        │       inbox, bulk loads, schedules join the commit   (a tombstone, a revoked stamp or a unique key may retire
        ▼                                                      it at once: lane STOPPED, with an outcome)
    prefetch    store ─ slice ─► window ─► timing wheel        the horizon passes (10 000, 7): the row is in memory too,
        │                                                      at most 300 s before it is due
        ▼
    dispatch    wheel ─ reap ─► ready ─ take ─► chunk          watermark = (10 000, 7): no row is placed at or before it
        │       a gate or a refusing destination diverts it    again; a row for a gate moves to the gate's own lane
        │       chunk ─ guard ─ publish ─ confirm              the message is in the task's own queue: dispatched
        ▼
    settle      offset, batch, tally ─ commit                  offset = (10 000, 7): after a crash it is not published
        │                                                      again
        ▼
    keep_house  forget                                         7 days later the row is deleted

    commands    of the inbox, carried out by ingest: cancel retires the row, move gives it another position, …
    announce    the result backend learns of cancelled tasks
    tend        the lease is renewed twice a second; a new holder adopts the shard, and offsets are made to agree

The modules; each imports from its own row and the rows below it::

    runner       threads that run the activities
    renewals     the leases of all shards of a process
    engine       one shard: rounds, errors, the lease
    listen, ingest, dispatch, settle, prefetch, announce, housekeeping       the activities, one module each; ingest has
                                                                             commands/, intake/ and recurring/
    unit_of_work, adoption     the two ways to change a shard: reserve, commit, apply; and a takeover
    round        what the activities share: Context, Round, Steps
    delivery     publishing to the two kinds of brokers              limits, stats
    state/       one holder's memory: lanes, window, gates           due_clock
    port         the protocols of brokers

The engine reads no clock, opens no connection and starts no thread by itself: clock, store and broker are passed in.
"""
