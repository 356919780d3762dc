"""Replays: a store and a wheel queue of each released version, which every later version takes over.

::

    python -m tests.replays          writes tests/replays/<version>/, in five minutes
      store.sqlite3.xz  queue.redis.json       a scheduler on SQLite and Redis was stopped in the middle of its work
      store.sql         queue.rabbitmq.json    another on PostgreSQL and RabbitMQ; psql restores the dump
      expected.json     for both: the picture that pages and commands gave of the store, the tasks that are due, and the
                        message of each as Celery itself sent it
    tests/replays/test_replays.py    reads, migrates, adopts and dispatches each folder, and compares

``scenes`` has the messages, ``making`` the scheduler that is stopped, ``places`` the files, ``judge`` the comparison.
"""
