"""A server that is too busy for its first clients: what lets a task of a project try again.

::

    server = BusyServer(Mail, refused=1)        SMTP: 421 to the first connection, then each message is accepted
    server = BusyServer(Api, refused=1)         HTTP: 429 to the first call, then 204
    server.start(); server.close()              in a thread of this process
    server.port, server.accepted                accepted: how many messages, or calls
"""

import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

#: Milliseconds after which a client of the API may call again, in the body of the refusal.
RETRY_AFTER_MS = 4_500


class BusyServer(ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, handler: Callable[..., Any], refused: int) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.port = int(self.server_address[1])
        self.accepted = 0
        self._refused = refused
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)

    def refuses(self) -> bool:
        with self._lock:
            self._refused -= 1
            return self._refused >= 0

    def accept(self) -> None:
        with self._lock:
            self.accepted += 1

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self.shutdown()
        self.server_close()


class Mail(StreamRequestHandler):
    """As much of SMTP as smtplib speaks."""

    server: BusyServer

    def handle(self) -> None:
        if self.server.refuses():
            self.wfile.write(b"421 too many connections\r\n")
            return
        self.wfile.write(b"220 ready\r\n")
        in_message = False
        for line in self.rfile:
            word = line.strip().upper()
            if in_message and word != b".":
                continue
            if in_message:
                self.server.accept()
            in_message = word == b"DATA"
            self.wfile.write(b"354 go on\r\n" if in_message else b"250 accepted\r\n")
            if word == b"QUIT":
                return


class Api(BaseHTTPRequestHandler):
    """An API with a rate limit, which is asked to delete."""

    server: BusyServer

    def do_DELETE(self) -> None:
        if self.server.refuses():
            self.send_response(HTTPStatus.TOO_MANY_REQUESTS)
            self.end_headers()
            self.wfile.write(json.dumps({"retry_after": RETRY_AFTER_MS}).encode())
            return
        self.server.accept()
        self.send_response(HTTPStatus.NO_CONTENT)
        self.end_headers()
