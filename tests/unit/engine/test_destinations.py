"""Rows whose destination the scheduler's list does not name: rejected when they are due, kept, and requeued later."""

from dataclasses import replace

import pytest

from celery_wheel.broker.destinations import MAX_ROUTES, Destinations, RouteRefusals
from celery_wheel.engine.round import Limits
from celery_wheel.store.model import Route
from tests.unit.engine.conftest import RabbitRig, Rig

MAIL = Destinations(allowed=("mail", "tenant-*", "news"))
GOOD = {"queue": "mail", "routing_key": "mail"}
BAD = {"queue": "evil", "routing_key": "evil"}


def listed(destinations: Destinations = MAIL) -> Limits:
    return Limits(refusal=RouteRefusals(destinations).__getitem__)


def reasons(rig: Rig) -> list[tuple[str, str, str]]:
    return [(one.kind, one.actor, one.reason) for one in rig.data.outcomes]


@pytest.mark.parametrize("kind", [Rig, RabbitRig])
def test_a_signed_row_may_have_any_destination_also_after_a_requeue_and_a_move(kind: type[Rig]) -> None:
    rig = kind(limits=listed(replace(MAIL, allowed=())))
    send = rig.send_in if isinstance(rig, RabbitRig) else lambda task_id, **own: rig.send(task_id, 5_000, **own)
    for task_id, shard in (("a", 0), ("b", 1), ("c", 0), ("d", None)):
        eta_ms = rig.clock.now_ms() + 5_000
        send(task_id, eta_ms=eta_ms, signed=shard is not None, signed_for=shard, **BAD)
    rig.run(rounds=3)
    assert rig.ask("move", task_ids=["c"], eta_ms=rig.clock.now_ms() + 9_000) == {"c": "done"}
    rig.take_over()
    rig.run(rounds=8, after_ms=9_003)
    assert reasons(rig)[1:] == [("rejected", "wheel", "wheel_destinations does not name its queue, 'evil'")] * 2
    sent = [name for name, _ in rig.sent_as] if isinstance(rig, RabbitRig) else rig.pushed
    assert sent == ["a", "c"], "b is a copy in the queue of another shard"


@pytest.mark.parametrize("kind", [Rig, RabbitRig])
def test_a_row_for_another_queue_is_rejected_when_it_is_due_and_delays_no_other(kind: type[Rig]) -> None:
    rig = kind(limits=listed())
    send = rig.send_in if isinstance(rig, RabbitRig) else lambda task_id, **own: rig.send(task_id, 5_000, **own)
    due = {"eta_ms": rig.clock.now_ms() + 5_000}
    for task_id, place in (("a", GOOD), ("b", BAD), ("c", {"queue": "tenant-7", "routing_key": "tenant-7"})):
        send(task_id, **due, **place)
    rig.run(rounds=3)
    assert reasons(rig) == []
    rig.run(rounds=5, after_ms=5_003)
    assert reasons(rig) == [("rejected", "wheel", "wheel_destinations does not name its queue, 'evil'")]
    sent = [name for name, _ in rig.sent_as] if isinstance(rig, RabbitRig) else rig.pushed
    assert sent == ["a", "c"]
    assert rig.pending() == 0
    stats = rig.engine.stats
    assert (stats.rejected, stats.rejected_destination, stats.dispatched) == (1, 1, 2)


def test_a_longer_list_lets_pending_rows_pass_and_rejected_ones_be_requeued(rig: Rig) -> None:
    rig.limits = listed()
    rig.engine = rig.new_engine()
    rig.send("due", 0, **BAD)
    rig.send("later", 60_000, **BAD)
    rig.run(rounds=5)
    assert rig.ask("requeue", task_ids=["due"]) == {"due": "done"}
    rig.run(rounds=5)
    assert rig.pushed == []
    assert [kind for kind, _, _ in reasons(rig)] == ["rejected", "moved", "rejected"], "the list is as before"
    rig.limits = listed(replace(MAIL, allowed=("evil",)))
    rig.take_over()
    rig.run(rounds=5)
    assert rig.ask("requeue", task_ids=["due"]) == {"due": "done"}
    rig.run(rounds=5)
    assert rig.pushed == ["due"]
    rig.run(rounds=5, after_ms=60_000)
    assert rig.pushed == ["due", "later"]


def test_a_row_in_doubt_is_not_published_again_under_a_shorter_list() -> None:
    rig = RabbitRig()
    eta = {"eta_ms": rig.clock.now_ms()}
    rig.send_in("good", **eta, **GOOD)
    rig.send_in("bad", **eta, **BAD)
    rig.run("tend", "ingest", "prefetch")
    for step in rig.engine.dispatch():
        if step == "applied":
            break
    rig.limits = listed()
    rig.take_over()
    rig.run(rounds=6)
    assert rig.sent_as == [("good", True)]
    assert reasons(rig) == [("rejected", "broker", "wheel_destinations does not name its queue, 'evil'")]
    assert rig.pending() == 0


@pytest.mark.parametrize(
    ("exchange", "routing_key", "queue", "why"),
    [
        ("", "mail", "mail", ""),
        ("", "mail", None, ""),
        ("", "Mail", "Mail", "wheel_destinations does not name its queue, 'Mail'"),
        ("", "mails", "mail", "wheel_destinations does not name its queue, 'mails'"),
        ("evil", "mail", "mail", "wheel_destinations does not name its exchange, 'evil'"),
        ("news", "evil", None, ""),
        ("news", "evil", "evil", ""),
        ("", "tenant-", None, ""),
        ("", "xtenant-1", None, "wheel_destinations does not name its queue, 'xtenant-1'"),
        ("", "tenant-1\nevil", None, ""),
        (
            "celery.pidbox",
            "mail",
            None,
            "'celery.pidbox' is no task's queue, but one of the wheel, of Celery or of kombu",
        ),
    ],
)
def test_the_exchange_is_judged_and_without_one_the_queue(
    exchange: str, routing_key: str, queue: str | None, why: str
) -> None:
    """The name of an exchange stands for all queues that are bound to it."""
    assert MAIL.refusal(exchange, routing_key, queue) == why


def test_a_pattern_of_the_list_allows_no_reserved_name() -> None:
    assert Destinations(allowed=("*",)).refusal("", "evil", "evil") == ""
    assert Destinations(allowed=("*",)).refusal("", "wheel.0", None)


def test_each_route_is_judged_once_and_memory_keeps_a_bounded_number() -> None:
    found = RouteRefusals(MAIL)
    for n in range(MAX_ROUTES + 10):
        assert found[Route.named(f"tenant-{n}", "t")] == ""
    assert len(found) <= MAX_ROUTES
