"""A private SQS for tests: moto's server, a process of its own on a free port, with its queues in its memory.

::

    with SqsServer(tmp_path) as server:
        server.url                                   sqs://key:secret@127.0.0.1:<port>
        server.options                               what broker_transport_options must say
        server.make_queue("wheel-0", VisibilityTimeout="2")
        server.client                                boto3's, for looking behind kombu's back

moto is no SQS: it finds a message at the first look, keeps them in order and forgets all when it ends. What it does
keep are the rules that matter here: a received message is hidden for the queue's visibility time-out and then comes
again with another receipt, until somebody deletes it.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import boto3

from tests.servers import PATIENCE_S, free_port, wait_until

REGION = "eu-central-1"
KEY, SECRET = "key", "secret"


class SqsServer:
    #: For kombu; requests end soon, so that a server that is gone is noticed.
    options: dict[str, Any] = {  # noqa: RUF012 - nobody changes it
        "region": REGION,
        "is_secure": False,
        "client-config": {"connect_timeout": 2, "read_timeout": 25, "retries": {"total_max_attempts": 2}},
    }

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "moto.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def start(self) -> SqsServer:
        """On the port it had before, or else on a free one."""
        ports = [self.port] if self.port else (free_port() for _ in range(5))
        for port in ports:  # between finding a free port and taking it, somebody else may have
            self.port = port
            if self._launch():
                return self
        raise AssertionError(f"moto's server did not start; its log:\n{self._log.read_text()}")

    def _launch(self) -> bool:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        with self._log.open("ab") as log:
            process = self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(lambda: process.poll() is not None or self._answers(), f"moto's server on port {self.port}")
        return process.poll() is None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/moto-api/", timeout=1):
                return True
        except (urllib.error.URLError, OSError):  # not listening yet
            return False

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None

    def restart(self) -> None:
        """All queues are gone with what was in them."""
        self.kill()
        self.start()

    def __enter__(self) -> SqsServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    # -- use -------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"sqs://{KEY}:{SECRET}@127.0.0.1:{self.port}"

    @cached_property
    def client(self) -> Any:
        return boto3.client(
            "sqs",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            region_name=REGION,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )

    def make_queue(self, name: str, **attributes: str) -> str:
        """Returns its URL."""
        found: str = self.client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return found
