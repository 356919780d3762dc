"""Requests of ``app.wheel`` to the holders of the shards, the answers to them, and questions to the store.

::

    Wheel.cancel ─────────────────────────┬► Wheel.ask ─┬► Request.send ─► the store's inbox
    Schedules.create ─► Schedules.change ─┘             └► Request.receive ◄─ Answers ◄─ the store's answers

    arguments       ids, keys, gates, reason, actor, timeout ─► checked before the request is sent
    request         a request ─► a command in every shard's inbox ─► withdrawn where no answer comes in time
    answers         the store of this process, its Purgatory of waiting requests, and its one reader of answers
    results         the answers of several shards ─► one result for each name
    asynchronous    async twins of the methods, and their interruption
    queries         reading methods of ``app.wheel``, answered from the store alone
    schedules       ``app.wheel.schedules``: definitions, commands and queries of recurring schedules

To *ask* is to send a request to the holders and to have its results; the *asker* is the process that does.
"""
