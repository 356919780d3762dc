"""Revoked stamps, in memory as in a worker: they cancel messages that arrive after the revoke.

::

    headers of a task    {"stamps": {"campaign": ["spring"], "tenant": ["7"]}, …}
    revoked              {"campaign": {"spring", "autumn"}}      any stamp in common is a match

Every scheduler process keeps its own and loses them when it ends. Above MOST stamps the oldest are forgotten.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from typing import Any

#: Stamps remembered at most; a worker remembers all.
MOST = 10_000

#: Why a task was cancelled, for people.
BY_STAMP = "revoked by a stamped header"


class RevokedStamps:
    """The revoked stamps; false while none was revoked. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._revoked: dict[tuple[str, str], None] = {}  #: (header, stamp as JSON), the oldest first

    def __bool__(self) -> bool:
        return bool(self._revoked)

    def add(self, headers: Mapping[str, Any]) -> None:
        """Revoke stamps.

        Args:
            headers: header → a stamp or a list of stamps.
        """
        with self._lock:
            revoked = dict(self._revoked)
            for header, stamps in headers.items():
                for place in _places(header, stamps):
                    revoked.pop(place, None)
                    revoked[place] = None
            for place in list(revoked)[: max(0, len(revoked) - MOST)]:
                del revoked[place]
            self._revoked = revoked

    def match(self, headers: bytes) -> bool:
        """Whether a message with these headers, a JSON object, was revoked."""
        if b'"stamps"' not in headers:  # spares most other messages the JSON
            return False
        stamps = json.loads(headers).get("stamps")
        if not isinstance(stamps, dict):
            return False
        revoked = self._revoked
        return any(place in revoked for header, values in stamps.items() for place in _places(header, values))


def _places(header: str, stamps: Any) -> Iterable[tuple[str, str]]:
    """Return (header, stamp as JSON) for each stamp; a stamp is any JSON value but null."""
    several = stamps if isinstance(stamps, list | tuple | set | frozenset) else [stamps]
    return [(header, json.dumps(stamp, default=str)) for stamp in several if stamp is not None]
