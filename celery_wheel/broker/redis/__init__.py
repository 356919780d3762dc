"""The Redis edge: a script pushes messages and moves the offset of their lane together; ``keys`` has all key names."""

from celery_wheel.broker.redis.edge import RedisBroker

__all__ = ["RedisBroker"]
