"""The Redis edge: messages and the offset that says which of them were sent move in one script."""

from celery_wheel.broker.redis.edge import RedisBroker

__all__ = ["RedisBroker"]
