"""The broker: does it answer, what can its edge promise, and does it keep what it was given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from celery_wheel.broker import refusal
from celery_wheel.doctor.finding import Finding, error, ok, warning
from celery_wheel.doctor.site import Site
from celery_wheel.present import duration, seen

if TYPE_CHECKING:
    from celery_wheel.broker.redis.edge import RedisBroker

#: What each edge promises, and what it cannot.
EDGES = {
    "redis": "exactly once into the task's queue, unless Redis loses writes that it acknowledged",
    "amqp": "at least once into the task's queue, what may come twice is marked; a loss in RabbitMQ is not noticed",
}
ANY_EDGE = "at least once as far as the transport keeps messages, without confirms; see docs/transports.md"


def check(site: Site) -> Iterator[Finding]:
    if site.transport and (why := refusal(site.transport)):
        yield error("broker", f"the wheel does not serve the transport {site.transport!r}: {why}", "Use another.")
        return
    if site.broker is None:
        yield silent(site)
        return
    yield ok("broker", f"{site.broker_name} answers")
    yield ok("transport", f"{site.transport}: {EDGES.get(site.transport, ANY_EDGE)}")
    if site.transport == "amqp":
        yield _confirms(site)
    if site.redis is not None:
        yield from _owners(site, site.redis)
        told = site.redis.info()
        yield _eviction(told)
        yield from _persistence(told)


def silent(site: Site) -> Finding:
    """The broker cannot be asked."""
    return error("broker", f"{site.broker_trouble}.", "Start it, or correct broker_url.")


def eviction(site: Site) -> list[Finding]:
    """A Redis that drops queues; empty where it does not, or is none."""
    found = [_eviction(site.redis.info())] if site.redis is not None else []
    return [one for one in found if one.remedy]


def _confirms(site: Site) -> Finding:
    if (site.app.conf.broker_transport_options or {}).get("confirm_publish"):
        return ok("confirms", "RabbitMQ confirms what producers send")
    return warning(
        "confirms",
        "producers do not wait for RabbitMQ to confirm: what was just sent may be lost with a connection or the server",
        'Set broker_transport_options = {"confirm_publish": True} wherever tasks are sent.',
    )


def _owners(site: Site, edge: RedisBroker) -> Iterator[Finding]:
    """Shards that another store has adopted: no scheduler of this one dispatches them."""
    if site.store is None:
        return
    for shard in range(site.store.shards):
        owner = edge.owner(shard)
        if owner is not None and owner.uuid != site.store.uuid:
            yield error(
                f"shard {shard}",
                f"the broker's offsets belong to another store, {seen(str(owner), 200)}, heard of "
                f"{duration(owner.silent_ms)} ago: nothing is dispatched from this store",
                "Let all schedulers share one wheel_store, or give each its wheel_namespace; if the other store is "
                "given up: celery -A <project> wheel claim-broker",
            )


def _eviction(told: dict[str, str | None]) -> Finding:
    policy = told["maxmemory_policy"]
    if policy is None:
        return _unknown("eviction", "maxmemory-policy", "noeviction")
    if policy == "noeviction":
        return ok("eviction", "Redis drops nothing when its memory is full (noeviction)")
    return warning(
        "eviction",
        f"Redis has maxmemory-policy {policy}: when its memory is full it drops queues, and with them tasks.",
        "Set maxmemory-policy to noeviction.",
    )


def _persistence(told: dict[str, str | None]) -> Iterator[Finding]:
    appends = told["aof_enabled"]
    if appends is None:
        yield _unknown("appendonly", "appendonly", "yes")
        return
    if appends == "0":
        yield warning(
            "appendonly",
            "Redis has appendonly no: when it ends, the tasks in its queues are those of its last snapshot, or none",
            "Set appendonly to yes.",
        )
        return
    yield ok("appendonly", "Redis writes what it was given to its log (appendonly yes)")
    syncs = told["appendfsync"]
    if syncs is None:
        yield _unknown("appendfsync", "appendfsync", "everysec or always")
    elif syncs == "no":
        yield warning(
            "appendfsync",
            "Redis leaves to the system when its log comes to the disk: a power cut may cost half a minute of tasks",
            "Set appendfsync to everysec, or to always.",
        )
    else:
        lost = "nothing" if syncs == "always" else "a second of tasks, which the wheel notices and sends again"
        yield ok("appendfsync", f"{syncs}: a power cut may cost {lost}")


def _unknown(about: str, name: str, wanted: str) -> Finding:
    return warning(about, f"Redis does not tell its {name} to this user", f"See to it that it is {wanted}.")
