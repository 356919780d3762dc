"""Metrics: what a scheduler shows to Prometheus and to OpenTelemetry.

1. The engine counts (``celery_wheel.engine.stats``); this room reads the counts when somebody asks, and counts nothing.
2. Each process shows the shards that it holds, so that sums over all schedulers are right. The totals of the store are
   shown by the holder of shard 0 alone.
3. Each label has a bounded number of values; docs/metrics.md has the bounds.
4. A store or a broker that does not answer removes its own metrics and sets ``reachable`` to 0.
"""
