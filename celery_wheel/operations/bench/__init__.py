"""Measurements: for ``celery wheel bench``, and for the project's own benchmarks.

::

    figure        a measured value, beside its yardstick and its target
    rig           one engine with its store and its broker's edge, driven round by round, and the time that takes
    isolation     an app, a store and queues of a measurement's own, made beside a site's and removed
    measurement   the four steps of a task on a site's own broker, in a store beside the site's

    celery wheel bench ─► measurement ─► isolation, rig          the project's benchmarks ─► rig, figure
"""
