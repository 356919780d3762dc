"""Rescue: eta messages that reached a worker by other ways than ``send_task`` are forwarded to the wheel.

::

    old producer, other language ──eta──► mail ──► worker ── Rescue (a step of its consumer)
                                                               │  1. publish to the wheel queue, confirmed
                                                               │  2. acknowledge the original
                                                               ▼
                                            wheel queue ──► store ──due──► mail, and no other queue

Files: ``bootstep`` joins the worker, ``received_message`` decides and reads, ``forwarder`` publishes.

Set ``wheel_rescue = True`` where the app is a ``celery_wheel.Celery`` or installed; on any other app of Celery's call
``app.steps["consumer"].add(Rescue)``.

Promises

1. Never a loss: the original is acknowledged after the broker has confirmed the copy in the wheel queue.
2. A crash between the two causes a second copy with the same envelope id, which the wheel recognises and drops.
3. Messages that the wheel has dispatched, or left to Celery on purpose, are not forwarded.
4. Where any error prevents the forwarding, Celery handles the message as without the wheel, and the log has the reason.

Non-promises: a message stays with the worker if its queue is ambiguous (two queues of one worker, bound to one
exchange, both matching), or if it has protocol 1 within protocol 2, whose eta is in the body alone.
"""

from celery_wheel.producer.rescue.bootstep import Rescue

__all__ = ["Rescue"]
