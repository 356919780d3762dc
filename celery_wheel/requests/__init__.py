"""Requests of ``app.wheel`` to the holders of the shards, the answers to them, and questions to the store.

::

    arguments       ids, keys, gates, reason, actor, timeout ─► checked before the request is sent
    request         a request ─► a command in every shard's inbox ─► withdrawn where no answer comes in time
    answers         the process's one Purgatory of waiting requests, and its one reader of answers
    results         the answers of several shards ─► one result for each name
    process_store   the store of an app, opened once in each process, with the requests that wait for its answers
    queries         reading methods of ``app.wheel``, answered from the store alone
    schedules       ``app.wheel.schedules``: definitions, commands and queries of recurring schedules
    asynchronous    async twins of the methods          interruption    … whose awaiter was cancelled
    status          each shard's holder, pending tasks, lanes and gates
"""
