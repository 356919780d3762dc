"""Sentry's Crons in the processes of the test project: every check-in is a line of the file ``check_ins``; no network.

A process gets it by the setting ``imports``.
"""

import json
import os
from pathlib import Path
from typing import Any

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport

from tests.kit.project import write_line


class RecordingTransport(Transport):
    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            if item.type == "check_in":
                write_line(_folder / "check_ins", item.payload.json)


_folder = Path(json.loads(os.environ["TEST_PROJECT"])["folder"])
_options: dict[str, Any] = {"dsn": "http://key@127.0.0.1:1/1", "transport": RecordingTransport}
sentry_sdk.init(integrations=[CeleryIntegration(monitor_beat_tasks=True)], default_integrations=False, **_options)
