"""Measurements: for ``celery wheel bench``, and for the project's own benchmarks.

::

    figure    a measured value, beside its yardstick and its target; the lines of a table of them
    rig       one engine with its store and its broker's edge, driven round by round, and the time that takes
    own       an app, a store and queues that nobody else has, made beside a site's and removed
    site      the four steps of a task on a site's own broker, in a store beside the site's       celery_wheel.cli.bench

    cli.bench ─► site ─► own, rig          tests.benchmarks ─► rig, figure
"""
