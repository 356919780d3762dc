"""Rescue: eta messages that reached a worker by other ways than ``send_task`` go to the wheel, and wait there.

::

    old producer, other language ──eta──► mail ──► worker ── Rescue (a step of its consumer)
                                                               │  1. publish to the wheel queue, confirmed
                                                               │  2. acknowledge the original
                                                               ▼
                                            wheel queue ──► store ──due──► mail, and no other queue

Files: ``step`` is the bootstep, ``received`` decides and reads, ``ferry`` publishes.

Opt in by ``wheel_rescue = True`` where the app is ``celery_wheel.Celery`` or installed; on any other app of Celery's by
``app.steps["consumer"].add(Rescue)``.

Promises

1. Never a loss: the original is acknowledged after the broker has confirmed the copy in the wheel queue.
2. A crash between the two gives a second copy with the same envelope id, which the wheel knows and drops.
3. What the wheel has sent, or left to Celery on purpose, is not taken again.
4. Whatever keeps a message from being taken leaves it to Celery's own way, and the log says why.

Non-promises: a message of which it cannot be known by which queue it came (two queues of one worker, one exchange, both
matching) stays; and a message of protocol 1 within one of protocol 2, whose eta is in the body alone.
"""

from celery_wheel.rescue.step import Rescue

__all__ = ["Rescue"]
