"""The scheduler process: its engines, its share of the shards, and its answers to Celery's remote control.

::

    service          a store, a broker edge and an engine for each shard; started and stopped by beat
    rebalance        the thread that keeps the scheduler's share of the shards
    share            the share, as arithmetic
    monitoring       metrics and health on a port, OpenTelemetry; with health, spans and systemd
    remote_control   revoke and inspect, as a node of Celery's own remote control
"""
