"""The HTTP server of a scheduler process: ``wheel_metrics`` is its address, and ``Pages`` what it serves.

A scheduler whose address is in use dispatches all the same, and tries again: at a restart the former process has the
address until it has settled. The server waits in the kernel, so an idle scheduler has no wake more.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, NamedTuple

from celery_wheel.timing import Backoff
from celery_wheel.values.log import get_logger

logger = get_logger(__name__)

RETRY_FIRST_S, RETRY_MOST_S = 1.0, 30.0

#: A client that sends nothing for so long is left.
CLIENT_S = 10.0

#: Connections that are served at a time, and the time in which the thread of one that was ended ends.
MOST, END_S = 16, 0.5

#: A stop waits no longer for the thread, which is a daemon.
JOIN_S = 1.0

TEXT = "text/plain; charset=utf-8"


class HttpAnswer(NamedTuple):
    status: int
    body: bytes
    content_type: str = TEXT


#: Returns the answer to a GET; the argument is the header ``Accept``.
MakePage = Callable[[str], HttpAnswer]


class MetricsServer:
    """Serves pages by their paths from ``start`` to ``stop``."""

    def __init__(self, address: tuple[str, int], pages: Mapping[str, MakePage]) -> None:
        self.address = address
        self._pages = pages
        self._stop = threading.Event()
        self._server: _Server | None = None
        self._thread = threading.Thread(target=self._run, name="wheel-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        server = self._server
        if server is not None:
            with suppress(OSError):  # it has ended
                server.socket.shutdown(socket.SHUT_RDWR)
        if self._thread.ident is not None:
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        told, backoff = False, Backoff(RETRY_FIRST_S, RETRY_MOST_S)
        while not self._stop.is_set():
            try:
                server = _Server(self.address, _handler(self._pages))
            except OSError as error:
                if not told:
                    logger.error(
                        "wheel_metrics: %s:%d cannot be served (%s); tasks are dispatched all the same; it is tried "
                        "again; several schedulers of one host need an address each",
                        *self.address,
                        error,
                        extra={"action": "metrics_address"},
                    )
                told = True
                self._stop.wait(backoff.failed())
                continue
            backoff.succeeded()
            with server:
                self._serve(server)

    def _serve(self, server: _Server) -> None:
        self._server = server
        logger.info("metrics are served on http://%s:%d/metrics", *self.address, extra={"action": "metrics_served"})
        while not self._stop.is_set():
            server.handle_request()


class _Server(ThreadingMixIn, TCPServer):
    """Serves ``MOST`` connections at a time: the next one ends the oldest, which mostly is idle or slow.

    A probe of /livez takes milliseconds, so idle clients do not keep it from its answer. The threads of connections
    that were ended may still make their pages; while they are ``MOST`` as well, a new connection is refused.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._changed = threading.Condition()
        self._open: dict[Any, None] = {}  #: connections, the oldest first
        self._ended: set[Any] = set()  #: connections that were ended for others
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            self._changed.wait_for(lambda: min(len(self._open), len(self._ended)) < MOST, END_S)
            if len(self._open) >= MOST > len(self._ended):
                oldest = next(iter(self._open))
                del self._open[oldest]
                self._ended.add(oldest)
                with suppress(OSError):  # the client has left
                    oldest.shutdown(socket.SHUT_RDWR)
            if is_served := len(self._open) < MOST:
                self._open[request] = None
        if is_served:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._changed:
            self._open.pop(request, None)
            self._ended.discard(request)
            self._changed.notify_all()
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a request for metrics failed: %r", sys.exc_info()[1], extra={"action": "metrics_request"})


def _handler(pages: Mapping[str, MakePage]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_S
        server_version, sys_version = "celery-wheel", ""

        def do_GET(self) -> None:
            page = self._page()
            self.send_response(page.status)
            self.send_header("Content-Type", page.content_type)
            self.send_header("Content-Length", str(len(page.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(page.body)

        do_HEAD = do_GET  # noqa: N815 - the name by which the server finds it

        def _page(self) -> HttpAnswer:
            make = pages.get(self.path.partition("?")[0])
            if make is None:
                return HttpAnswer(404, f"The pages are: {' '.join(pages)}\n".encode())
            try:
                return make(self.headers.get("Accept", ""))
            except Exception as error:
                logger.exception("the page %s failed", self.path, extra={"action": "metrics_page"})
                return HttpAnswer(500, f"{type(error).__name__}: the log of the scheduler has more\n".encode())

        def log_message(self, *args: Any) -> None:
            """Log nothing: a scrape every few seconds is no news."""

    return Handler
