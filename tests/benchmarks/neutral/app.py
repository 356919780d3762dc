"""The Celery app of the wheel's entry, which its beat and its worker import. A file of its own: they are processes."""

import os
import socket
import struct
import time

from celery_wheel import Celery

app = Celery("neutral", broker=os.environ.get("NEUTRAL_BROKER", "memory://"))
app.conf.update(
    beat_scheduler="wheel",
    wheel_store=os.environ.get("DATABASE_URL", "").replace("postgres://", "postgresql://", 1) or None,
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=4,
    worker_hijack_root_logger=False,
)
_WORK_S = int(os.environ.get("JOB_WORK_MS", "1")) / 1_000
_HOME = ("127.0.0.1", int(os.environ.get("NEUTRAL_PORT", "0")))
_socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


@app.task(name="neutral.job")
def job(sent_s: float, _padding: str = "") -> None:
    _socket.sendto(struct.pack("d", time.time() - sent_s), _HOME)
    if _WORK_S:
        time.sleep(_WORK_S)


@app.task(name="neutral.later")
def later() -> None: ...
