"""A private SQS: moto's server, with its queues in its memory.

::

    with SqsServer(tmp_path) as server:
        server.url                                   sqs://key:secret@127.0.0.1:<port>
        server.options                               what broker_transport_options must say
        server.make_queue("wheel-0", VisibilityTimeout="2")
        server.client                                boto3's client, for access without kombu

moto differs from SQS: it finds a message at the first request, keeps messages in order and forgets all when it ends. It
keeps the rules that matter here: a received message is hidden for the queue's visibility time-out and is then delivered
anew with another receipt, until a consumer deletes it. After a restart all queues and their messages are gone.
"""

import sys
import urllib.error
import urllib.request
from functools import cached_property
from typing import Any

import boto3

from tests.kit.processes import Process
from tests.kit.servers import Server

REGION = "eu-central-1"
KEY, SECRET = "key", "secret"


class SqsServer(Server):
    #: For kombu; requests end soon, so that a server that is gone is noticed.
    options: dict[str, Any] = {  # noqa: RUF012 - it is never changed
        "region": REGION,
        "is_secure": False,
        "client-config": {"connect_timeout": 2, "read_timeout": 25, "retries": {"total_max_attempts": 2}},
    }

    def launch(self, port: int) -> Process:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        return Process(command, self.folder / "moto.log")

    def answers(self, port: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=1):
                return True
        except (urllib.error.URLError, OSError):  # not listening yet
            return False

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
        found: str = self.client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return found
