"""What a real worker of these tests runs: each task writes down that it ran, in the order in which it did."""

import json
import os
from typing import Any

import redis
from celery import Celery
from kombu import Exchange, Queue

URL = os.environ["REDIS_EDGE_URL"]
PREFIX = os.environ.get("REDIS_EDGE_PREFIX", "")
OPTIONS = {"global_keyprefix": PREFIX} if PREFIX else {}

app = Celery("edge", broker=URL)
app.conf.update(
    broker_transport_options=OPTIONS,
    task_queues=[
        Queue("mail", Exchange("mail"), routing_key="mail"),
        Queue("sport", Exchange("news", type="topic"), routing_key="news.sport.#"),
        Queue("orders", Exchange("shop", type="direct"), routing_key="order"),
    ],
    task_default_queue="mail",
    worker_prefetch_multiplier=1,  # so that the order is the broker's, not the worker's
    accept_content=["json", "pickle"],
)


@app.task(bind=True, name="edge.note")
def note(self: Any, number: int, text: str = "") -> None:
    ran = {
        "number": number,
        "text": text,
        "id": self.request.id,
        "eta": self.request.eta,
        "greeting": self.request.get("greeting"),
        "routing_key": self.request.delivery_info["routing_key"],
        "priority": self.request.delivery_info["priority"],
    }
    with redis.Redis.from_url(URL) as client:
        client.rpush("ran", json.dumps(ran))
