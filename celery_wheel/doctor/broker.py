"""The broker: does it answer, what can its edge promise, and does it keep what it was given."""

from __future__ import annotations

from collections.abc import Iterator

from celery_wheel.broker import refusal
from celery_wheel.doctor.finding import Finding, error, ok, warning
from celery_wheel.doctor.server import RedisServer
from celery_wheel.doctor.site import Site

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
    server = site.server
    if server is None:
        yield silent(site)
        return
    yield ok("broker", f"{server.name} answers")
    yield ok("transport", f"{site.transport}: {EDGES.get(site.transport, ANY_EDGE)}")
    if site.transport == "amqp":
        yield _confirms(site)
    if isinstance(server, RedisServer):
        yield _eviction(server)
        yield from _persistence(server)


def silent(site: Site) -> Finding:
    """The broker cannot be asked."""
    return error("broker", f"{site.broker_trouble}.", "Start it, or correct broker_url.")


def eviction(site: Site) -> list[Finding]:
    """A Redis that drops queues; empty where it does not, or is none."""
    found = [_eviction(site.server)] if isinstance(site.server, RedisServer) else []
    return [one for one in found if one.remedy]


def _confirms(site: Site) -> Finding:
    if (site.app.conf.broker_transport_options or {}).get("confirm_publish"):
        return ok("confirms", "RabbitMQ confirms what producers send")
    return warning(
        "confirms",
        "producers do not wait for RabbitMQ to confirm: what was just sent may be lost with a connection or the server",
        'Set broker_transport_options = {"confirm_publish": True} wherever tasks are sent.',
    )


def _eviction(server: RedisServer) -> Finding:
    policy = server.told("memory", "maxmemory_policy")
    if policy is None:
        return _unknown("eviction", "maxmemory-policy", "noeviction")
    if policy == "noeviction":
        return ok("eviction", "Redis drops nothing when its memory is full (noeviction)")
    return warning(
        "eviction",
        f"Redis has maxmemory-policy {policy}: when its memory is full it drops queues, and with them tasks.",
        "Set maxmemory-policy to noeviction.",
    )


def _persistence(server: RedisServer) -> Iterator[Finding]:
    appends = server.told("persistence", "aof_enabled")
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
    syncs = server.configured("appendfsync")
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
