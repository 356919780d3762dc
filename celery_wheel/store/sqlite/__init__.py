"""The store in a SQLite file.

::

    place      from the URL to a file in a usable folder
    database   one writer, many readers, the write-ahead log
    lease      a shard's lock: an OS lock on a file beside the store
    fair_lock  the turns of the threads that write
    poll       whether there is anything new, asked 20 times a second
    fork_gate  a fork waits until no other thread is inside SQLite
    errors     SQLite's errors for people
"""
