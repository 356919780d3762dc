"""The store in a SQLite file.

::

    place      from the URL to a file in a folder that can be used
    database   one writer, many readers, the write-ahead log
    lease      a shard is held by an OS lock on a file beside the store
    turns      writers of one process, in the order they came
    words      what SQLite's errors mean, for people
"""
