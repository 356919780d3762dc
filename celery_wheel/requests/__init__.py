"""Requests of ``app.wheel`` to the holders of the shards, and their answers.

::

    arguments       ids, keys, gates, reason, actor, timeout ─► checked before the request is sent
    request         a request ─► a command in every shard's inbox ─► withdrawn where no answer comes in time
    answers         the process's one Purgatory of requests that wait, and its one reader of answers
    verdicts        the answers of several shards ─► one result for each name
    process_store   the store of an app, opened once in each process, with the requests that wait at it
"""
