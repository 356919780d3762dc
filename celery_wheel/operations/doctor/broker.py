"""The broker: it answers, its edge has promises, and it keeps the messages that it confirmed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from celery_wheel.broker import unsupported_reason
from celery_wheel.broker.places import is_brokers_store, shown
from celery_wheel.operations.doctor.finding import Finding, Grade, error, note, ok, split_remedy, warning
from celery_wheel.operations.doctor.installation import Installation
from celery_wheel.values.format import format_duration, printable

if TYPE_CHECKING:
    from celery_wheel.broker.redis.edge import RedisBroker

#: The promises of each edge, and their limits.
EDGES = {
    "redis": "exactly once into the task's queue, unless Redis loses writes that it acknowledged",
    "amqp": "at least once into the task's queue, redelivered messages are marked; a loss in RabbitMQ is not noticed",
}
ANY_EDGE = (
    'at least once as far as the transport keeps messages, without confirms: see the page "Other kombu transports"'
)


def check(site: Installation) -> Iterator[Finding]:
    if site.transport and (why := unsupported_reason(site.transport)):
        yield error(
            "broker",
            f"the wheel does not serve the transport {site.transport!r}: {why}",
            "Let broker_url name Redis, RabbitMQ, or another broker with queues that all processes share.",
        )
        return
    if site.broker is None:
        yield unavailable(site)
        return
    yield ok("broker", f"{site.broker_name} answers")
    yield from _other_broker(site)
    yield ok("transport", f"{site.transport}: {EDGES.get(site.transport, ANY_EDGE)}")
    if site.transport == "amqp":
        yield _confirms(site)
    if site.redis is not None:
        yield from _owners(site, site.redis)
        info = site.redis.info()
        yield _eviction(info)
        yield from _persistence(info, is_local(site))


def unavailable(site: Installation) -> Finding:
    """Return the finding for a broker that does not answer."""
    problem, remedy = split_remedy(site.broker_trouble)
    return error("broker", problem, remedy or "Correct broker_url.")


def eviction(site: Installation) -> list[Finding]:
    """Return a finding for a Redis that drops queues; none for a Redis that does not, or another broker."""
    found = [_eviction(site.redis.info())] if site.redis is not None else []
    return [one for one in found if one.grade is Grade.WARNING]


def is_local(site: Installation) -> bool:
    """Whether the broker is on this machine, as a developer's is."""
    host = str(site.app.connection_for_write().hostname or "localhost")
    return host in ("localhost", "::1") or host.startswith(("127.", "/"))


def _confirms(site: Installation) -> Finding:
    if (site.app.conf.broker_transport_options or {}).get("confirm_publish"):
        return ok("confirms", "RabbitMQ confirms the messages of producers")
    return warning(
        "confirms",
        "producers do not wait for RabbitMQ's confirms: a message may be lost with a connection or the server",
        'Set broker_transport_options = {"confirm_publish": True} wherever tasks are sent.',
    )


def _other_broker(site: Installation) -> list[Finding]:
    """Return a finding where the store dispatches to another broker: no scheduler starts."""
    if site.store is None or is_brokers_store(site.app, site.store):
        return []
    return [
        error(
            "other broker",
            f"the store dispatches to {shown(site.store.brokers())}: no scheduler starts on this broker",
            "Give each app a wheel_store of its own; if the broker has another address now: "
            "celery -A proj wheel claim-broker",
        )
    ]


def _owners(site: Installation, edge: RedisBroker) -> Iterator[Finding]:
    """Yield a finding for each shard that another store has adopted: no scheduler of this store dispatches it."""
    if site.store is None:
        return
    for shard in range(site.store.shards):
        owner = edge.owner(shard)
        if owner is not None and owner.uuid != site.store.uuid:
            yield error(
                f"shard {shard}",
                f"the broker's offsets belong to another store, {printable(str(owner), 200)}, last seen "
                f"{format_duration(owner.silent_ms)} ago: nothing is dispatched from this store",
                "Let all schedulers share one wheel_store, or give each its wheel_namespace; if the other store is "
                "given up: celery -A proj wheel claim-broker",
            )


def _eviction(info: dict[str, str | None]) -> Finding:
    policy = info["maxmemory_policy"]
    if policy is None:
        return _unknown("eviction", "maxmemory-policy", "noeviction")
    if policy == "noeviction":
        return ok("eviction", "Redis drops nothing when its memory is full (noeviction)")
    return warning(
        "eviction",
        f"Redis has maxmemory-policy {policy}: when its memory is full it drops queues, and with them tasks.",
        "Set maxmemory-policy to noeviction.",
    )


def _persistence(info: dict[str, str | None], local: bool) -> Iterator[Finding]:
    """Yield a note for a Redis on this machine, where its owner may want to lose everything at a restart."""
    grade, unless = (note, " On a machine for development it may stay as it is.") if local else (warning, "")
    appends = info["aof_enabled"]
    if appends is None:
        yield _unknown("appendonly", "appendonly", "yes")
        return
    if appends == "0":
        yield grade(
            "appendonly",
            "Redis has appendonly no: after a restart its queues have the tasks of its last snapshot, or none",
            f"Set appendonly to yes.{unless}",
        )
        return
    yield ok("appendonly", "Redis logs every write (appendonly yes)")
    syncs = info["appendfsync"]
    if syncs is None:
        yield _unknown("appendfsync", "appendfsync", "everysec or always")
    elif syncs == "no":
        yield grade(
            "appendfsync",
            "Redis leaves it to the system to sync its log: a power failure may lose half a minute of tasks",
            f"Set appendfsync to everysec, or to always.{unless}",
        )
    else:
        lost = "nothing" if syncs == "always" else "a second of tasks, which the wheel notices and dispatches again"
        yield ok("appendfsync", f"{syncs}: a power failure may lose {lost}")


def _unknown(about: str, name: str, wanted: str) -> Finding:
    """Return a note: hosted servers mostly hide their settings, which nobody can change then."""
    return note(about, f"Redis does not show its {name} to this user", f"Make sure that it is {wanted}.")
