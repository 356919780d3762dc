"""Sentry's traces in the processes of the test project: each latency of a queue is a line of the file ``latencies``.

A worker gets it by ``celery -A tests.kit.sentry_spans``: Sentry has to begin before Celery imports its worker. Nothing
is sent by network.
"""

import json
import os
from pathlib import Path
from typing import Any

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport

from tests.kit.project import app, write_line

__all__ = ["app"]


class RecordingTransport(Transport):
    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            if item.type == "transaction":
                for span in item.payload.json["spans"]:
                    if span["op"] == "queue.process":
                        write_line(_folder / "latencies", span["data"].get("messaging.message.receive.latency"))


_folder = Path(json.loads(os.environ["TEST_PROJECT"])["folder"])
_options: dict[str, Any] = {"dsn": "http://key@127.0.0.1:1/1", "transport": RecordingTransport}
sentry_sdk.init(integrations=[CeleryIntegration()], default_integrations=False, traces_sample_rate=1.0, **_options)
