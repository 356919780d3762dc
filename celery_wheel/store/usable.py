"""What every database refuses: to be used after it was closed, or in a process that was forked from its own."""

from __future__ import annotations

import os

from celery_wheel.errors import StoreError


class Usable:
    def __init__(self, name: str) -> None:
        self.name = name
        self._pid = os.getpid()
        self._closed = False

    def _check_usable(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self.name} was closed; nothing was read or written; open it again")
        if self._pid != os.getpid():
            raise StoreError(
                f"the store {self.name} was opened before this process was forked; nothing was read or written; "
                "open it anew in each process"
            )
