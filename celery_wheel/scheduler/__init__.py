"""The scheduler process: its engines, its share of the shards, and its answers to Celery's remote control.

::

    service          a store, a broker edge and an engine for each shard; started and stopped by beat
    share            the shards that this scheduler holds; supervisor has the further processes of ``wheel_processes``
    monitoring       health, metrics, memory, log and systemd of one process; spans has the traces
    occurrences      the messages of recurring schedules; sources has the entries of Beat and django-celery-beat
    remote_control   revoke and inspect, as a node of Celery's own remote control
"""

from __future__ import annotations

import sys

from celery_wheel.errors import SettingError

if sys.platform == "win32":  # before a submodule imports what Windows lacks
    raise SettingError(
        "a scheduler of celery-wheel must run on Linux or macOS: Windows lacks file locks and signals that it needs; "
        "nothing was started; run it in WSL, in a container or on another machine; tasks may be sent from Windows"
    )
