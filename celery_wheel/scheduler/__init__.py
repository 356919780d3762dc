"""The scheduler process: its engines, its share of the shards, and its answers to Celery's remote control.

::

    service          a store, a broker edge and an engine for each shard; started and stopped by beat
    share            the shards that this scheduler holds; supervisor has the further processes of ``wheel_processes``
    monitoring       health, metrics, memory, log and systemd of one process; spans has the traces
    occurrences      the messages of recurring schedules; sources has the entries of Beat and django-celery-beat
    remote_control   revoke and inspect, as a node of Celery's own remote control
"""
