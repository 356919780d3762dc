"""A warning that kombu logs for each connection: once is enough, and a scheduler makes a dozen connections."""

from __future__ import annotations

import logging

#: How the warning begins: a URL of rediss:// without options of TLS accepts any certificate.
REPEATED = "Secure redis scheme specified (rediss) with no ssl"


class Once(logging.Filter):
    """Lets the repeated warning through once in each process, and every other record always."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = False

    def filter(self, record: logging.LogRecord) -> bool:
        if not str(record.msg).startswith(REPEATED):
            return True
        first, self._seen = not self._seen, True
        return first


_ONCE = Once()


def warn_once() -> None:
    """Let this process log the warning once; a second call changes nothing."""
    logging.getLogger("kombu.connection").addFilter(_ONCE)
