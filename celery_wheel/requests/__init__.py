"""Requests of ``app.wheel`` to the holders of the shards, the answers to them, and questions to the store.

::

    Wheel.cancel ─────────────────────────┬► Wheel.ask ─┬► Request.send ─► the store's inbox
    OwnLimits.set ────────────────────────┤             │
    Schedules.create ─► Schedules.change ─┘             └► Request.receive ◄─ Answers ◄─ the store's answers

To *ask* is to send a request to the holders and to have its results; the *asker* is the process that does.
"""
