"""Recurring schedules in the engine: an instant of a schedule becomes a message, which is accepted like any other.

Promises
    1. A row, its run and the step of its schedule are committed together: each instant becomes one row, or has a skip
       with its reason, whatever crashes.
    2. A change answers when it is committed. Then no row of the former definition with a later instant is pending; rows
       that may have been published already are named as ``too_late``.
    3. With the overlap policies "skip" and "queue_one", no instant is made while an earlier run is not over.
    4. A definition that cannot be read stops its schedule, and no other. A message that the project's code cannot make
       is tried again with back-off, for an hour; other schedules wait no longer than one try in a round.
"""
