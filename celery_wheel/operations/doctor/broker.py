"""The broker: it answers, its edge has promises, and it keeps the messages that it confirmed."""

from __future__ import annotations

from collections.abc import Iterator

from celery_wheel.broker.owner import owner_of
from celery_wheel.broker.transport import UNSUPPORTED, is_brokers_store, shown
from celery_wheel.engine.port import Broker
from celery_wheel.operations.doctor.installation import Finding, Installation, error, note, ok, split_remedy, warning
from celery_wheel.store.model import ORIGIN
from celery_wheel.store.ports import FullStore
from celery_wheel.values.format import format_duration, printable

#: The promises of each edge, and their limits.
EDGES = {
    "redis": "exactly once into the task's queue, unless Redis loses writes that it acknowledged",
    "amqp": "at least once into the task's queue, redelivered messages are marked; a loss in RabbitMQ is not noticed",
}
ANY_EDGE = (
    'at least once as far as the transport keeps messages, without confirms: see the page "Other kombu transports"'
)


def check(site: Installation) -> Iterator[Finding]:
    if why := UNSUPPORTED.get(site.transport):
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
    yield from _owners(site, site.broker)
    yield from eviction(site)
    yield from power(site)
    if site.redis_settings and site.redis_settings["appendfsync"] is not None and not is_local(site):
        yield note(
            "rights",
            "the user in broker_url may change the settings of Redis: who has the URL may empty or stop the server",
            'Give producers, workers and schedulers users of their own, as on the page "Users with few rights".',
        )


def unavailable(site: Installation) -> Finding:
    problem, remedy = split_remedy(site.broker_trouble)
    return error("broker", problem, remedy or "Correct broker_url.")


def eviction(site: Installation) -> Iterator[Finding]:
    """Yield whether a Redis drops queues; nothing for another broker."""
    if site.redis_settings is None:
        return
    policy = site.redis_settings["maxmemory_policy"]
    if policy is None:
        yield _unknown("eviction", "maxmemory-policy", "noeviction")
    elif policy == "noeviction":
        yield ok("eviction", "Redis drops nothing when its memory is full (noeviction)")
    else:
        yield warning(
            "eviction",
            f"Redis has maxmemory-policy {policy}: when its memory is full it drops queues, and with them tasks.",
            "Set maxmemory-policy to noeviction.",
        )


def power(site: Installation) -> Iterator[Finding]:
    """Yield whether a Redis may lose accepted messages when its host loses power; nothing for another broker.

    On this machine it is a note: its owner may want to lose everything at a restart.
    """
    if site.redis_settings is None:
        return
    grade, unless = (note, " On a machine for development it may stay as it is.") if is_local(site) else (warning, "")
    appends = site.redis_settings["aof_enabled"]
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
    syncs = site.redis_settings["appendfsync"]
    if syncs is None:
        yield _unknown("appendfsync", "appendfsync", "always")
    elif syncs == "no":
        yield grade(
            "appendfsync",
            "Redis leaves it to the system to sync its log: a power failure may lose half a minute of tasks",
            f"Set appendfsync to always, or to everysec.{unless}",
        )
    elif syncs == "always":
        yield ok("appendfsync", "always: a power failure loses no message that Redis has accepted")
    else:
        yield grade(
            "appendfsync",
            f"Redis syncs its log each second (appendfsync {syncs}): a power failure may lose the last second of "
            "accepted messages, which are immediate tasks and delayed ones that no scheduler had stored yet; the wheel "
            "notices the loss of dispatched ones and dispatches them again",
            f"Set appendfsync to always where no accepted task may be lost.{unless}",
        )


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


def _owners(site: Installation, broker: Broker) -> Iterator[Finding]:
    """Yield a finding for each shard that another store, or another copy of this one, has in the broker."""
    if site.store is None:
        return
    identity = site.store.identity()
    for shard in range(site.store.shards):
        owner, about = owner_of(broker, shard), f"shard {shard}"
        if owner is None:
            yield from _emptied(site, site.store, shard)
            continue
        place, heard = printable(owner.place, 200), f"last seen {format_duration(owner.silent_ms)} ago"
        if owner.uuid != identity.uuid:
            yield error(
                about,
                f"the broker's offsets belong to another store, {printable(str(owner), 200)}, {heard}: nothing is "
                "dispatched from this store",
                "Let all schedulers share one wheel_store, or give each its wheel_namespace; if the other store is "
                "given up: celery -A proj wheel claim-broker",
            )
        elif owner.is_copy_of(identity) and (owner.lives or owner.address != identity.address):
            yield error(
                about,
                f"another copy of this store, {place}, holds it in the broker, {heard}: nothing is dispatched from "
                f"this copy, {identity.place}",
                "Remove the copy that is not to be used; if the store was moved here on purpose, stop the schedulers "
                "of the other and run: celery -A proj wheel claim-store",
            )
        elif owner.refused:
            yield warning(
                about,
                f"schedulers on a copy of this store, {printable(owner.refused, 200)}, try to hold it and are refused",
                "Stop those schedulers, and remove the copy: its tasks are not dispatched.",
            )


def _emptied(site: Installation, store: FullStore, shard: int) -> Iterator[Finding]:
    if site.redis is not None and any(lane.offset > ORIGIN for lane in store.lanes(shard)):
        yield error(
            f"shard {shard}",
            "the broker was emptied: it has nothing of this shard, of which tasks were dispatched to it; messages that "
            "were not accepted yet are lost",
            "A scheduler dispatches the tasks of the last wheel_rollback_window seconds again as soon as it runs; see "
            "its log. Check the broker's persistence.",
        )


def _unknown(about: str, name: str, wanted: str) -> Finding:
    """Return a note: hosted servers mostly hide their settings, which nobody can change then."""
    return note(about, f"Redis does not show its {name} to this user", f"Make sure that it is {wanted}.")
