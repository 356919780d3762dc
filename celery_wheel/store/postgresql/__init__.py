"""The store in a PostgreSQL database. Its modules are imported when one is opened: the driver is an extra.

::

    database    transactions on pooled sessions, polls         sessions   their settings; the end of a stopped holder's
    statements  those that differ, and many rows by COPY       server     promises, autovacuum and fillfactor
    bell        LISTEN and NOTIFY wake the schedulers          errors     PostgreSQL's errors for people
"""
