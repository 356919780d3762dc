"""The store in a PostgreSQL database. Its modules are imported when one is opened: the driver is an extra.

::

    place               the URL, with several hosts
    database            transactions on pooled sessions
    sessions            the parameters of a session, and the requirements on the server
    bell                LISTEN and NOTIFY: writers of the inbox wake the schedulers
    poll                whether there is anything new
    eviction            the end of a holder's session that stopped with the shard's row locked
    statements          the statements that differ on PostgreSQL
    server              its promises, and the transaction that holds back its vacuum
    bulk_copy           many rows by COPY
    storage_parameters  autovacuum and fillfactor of the tables
    errors              PostgreSQL's errors for people
"""
