"""The store in a PostgreSQL database. Its modules are imported where one is opened: the driver is an extra.

::

    place       the URL, with several hosts
    database    transactions, on connections of two pools
    sessions    what a connection is made with, and what the server has to be
    holding     the lease in the shard's row, and a holder that stopped with the row locked
    statements  the statements that only PostgreSQL has
    copying     many rows by COPY
    tables      storage parameters
    words       what PostgreSQL's errors mean, for people
"""
