"""Two rooms over one clock, of the standard library alone: the timing wheel, and the purgatory.

::

    the purgatory    Purgatory ──► DelayedOperation    operations that complete by an event, or by time-out
                         ▼
    the wheel        Reaper ──► SystemTimer ──► TimingWheel ──► Level, Bucket, Timer
                     thread     lock, waiting   integers only

Each imports only modules below and to its right. The engine uses TimingWheel and the clocks; ``requests`` lets requests
wait for their answers in a Purgatory; ``retry`` serves all.
"""

from celery_wheel.timing.clock import Clock, ManualClock, SystemClock, TimerClock
from celery_wheel.timing.delayed_operation import DelayedOperation
from celery_wheel.timing.purgatory import Purgatory
from celery_wheel.timing.retry import Backoff, RetryLog
from celery_wheel.timing.system_timer import Reaper, SystemTimer
from celery_wheel.timing.wheel import Bucket, Level, Timer, TimingWheel

__all__ = [
    "Backoff",
    "Bucket",
    "Clock",
    "DelayedOperation",
    "Level",
    "ManualClock",
    "Purgatory",
    "Reaper",
    "RetryLog",
    "SystemClock",
    "SystemTimer",
    "Timer",
    "TimerClock",
    "TimingWheel",
]
