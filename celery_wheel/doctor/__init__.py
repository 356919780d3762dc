"""What can be wrong with an installation, looked at from this host. Nothing is changed by looking.

::

    settings   values, the app's class, queues that workers would empty, delays left to workers
    store      reachable, of this version and number of shards, loads that were left open, room on its disk, history
               that waits for its archive
    broker     answers, what its edge promises; RabbitMQ's confirms; Redis's persistence and eviction, and the store
               to which its offsets belong
    clocks     this host against Redis and PostgreSQL
    shards     holders and their age, what is behind, what the holder said of itself, its version
    queues     what waits in the broker, for how long, and whether its oldest message can be read

``celery wheel doctor`` runs them all; Django's system checks share some. Each asks with a short patience.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from celery_wheel.doctor import broker, clocks, queues, settings, shards, store
from celery_wheel.doctor.finding import Finding, Grade
from celery_wheel.doctor.site import Site

__all__ = ["CHECKS", "Finding", "Grade", "Site", "examine"]

CHECKS: tuple[Callable[[Site], Iterator[Finding]], ...] = (
    settings.check,
    store.check,
    broker.check,
    clocks.check,
    shards.check,
    queues.check,
)


def examine(app: Any) -> Iterator[list[Finding]]:
    """The findings of each check in turn. With settings that make no sense nothing else can be asked."""
    with Site(app) as site:
        for check in CHECKS:
            yield list(check(site))
            if check is settings.check and any(site.conf.problems()):
                return
