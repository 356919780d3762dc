"""Two settings of a scheduler's process for its memory: it holds 100,000 rows, and its threads pass them on.

1. The garbage collector runs seldom: rows make no cycles, and it looked at each 100,000 of them, which was a fifth of
   the CPU time of ingest and dispatch. Other code makes the garbage that it frees.
2. All threads allocate from two arenas of glibc. With an arena for each thread, memory that one thread frees serves no
   other: a scheduler with 100,000 rows pending took 216 MB at most, and takes 161. One thread runs Python at a time, so
   none waits for an arena.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

#: Objects that are made, less those that are freed, between two runs of the garbage collector: twice the window's rows.
GARBAGE_EVERY = 200_000

#: ``mallopt`` of glibc: the greatest number of arenas.
_M_ARENA_MAX = -8
ARENAS = 2


def tune_memory() -> None:
    """Apply both settings to this process, before it starts its threads."""
    gc.freeze()
    gc.set_threshold(GARBAGE_EVERY, 10, 10)
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS)
