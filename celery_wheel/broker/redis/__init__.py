"""The Redis edge: a script pushes messages and moves the offset of their lane together."""

from celery_wheel.broker.redis.edge import RedisBroker

__all__ = ["RedisBroker"]
