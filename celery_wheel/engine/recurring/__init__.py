"""Recurring schedules in the engine: an instant of a schedule becomes a message, which is accepted like any other.

::

    inbox ─ "schedule" ──► change        create, update, delete, pause, resume, roll back: one unit of work
          │   └ trigger, backfill ─┐
          └ "run_ended" ─► runs    │                          ┌── the message's row, its run
                                   ▼                          │
    store ─ schedules due ─► materialise ─► arrivals of ingest ┼── the schedule's step: next_ms, made
              before their time       │                       └── skips of instants that will not run
                                      └ instants (after an outage), runs (while one runs)

    10:29:58  ingest finds next_ms = 10:30 within the look-ahead: row (10:30, seq) and next_ms = 10:31 are committed
    10:30:00  dispatch publishes the row
    10:30:30  an update takes the row of 10:31 out, if it exists, and writes the new definition and its next instant

The modules; each imports from those below it, and ``celery_wheel.recurring.definition``::

    materialise      messages of instants that are due, among the arrivals of ingest
    change           commands of the inbox
    restore          a schedule of another store, with its progress
    runs             which runs of a schedule are not over
    backfill_queue   instants of a backfill that wait for the run before them
    herd             schedules that are due at nearly the same time are made ahead
    backfill         which instants a trigger or a backfill runs, and when
    header           the header of an occurrence's message
    instants         which of the instants that are due are made, and why the others are skipped
    port             the protocols that the scheduler implements

Promises
    1. A row, its run and the step of its schedule are committed together: each instant becomes one row, or has a skip
       with its reason, whatever crashes.
    2. A change answers when it is committed. Then no row of the former definition with a later instant is pending; rows
       that may have been published already are named as ``too_late``.
    3. With the overlap policies "skip" and "queue_one", no instant is made while an earlier run is not over.
    4. A definition that cannot be read stops its schedule, and no other. A message that the project's code cannot make
       is tried again with back-off, for an hour; other schedules wait no longer than one try in a round.

Non-promises
    A run is over when its worker reports the end, its row is retired, or ``max_runtime_ms`` after its row was due. A
    row that was published later than it was due, behind a pause of its queue, has the rest of that time.
"""
