"""What is asked of a scheduler as of a worker: the API, the command line, several schedulers, a lost broker."""

from __future__ import annotations

import itertools
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.integration.node.conftest import Site
from tests.servers import wait_until


def answer_of_the_wheel(answers: dict[str, Any] | None) -> Any:
    [(name, found)] = (answers or {}).items()
    assert name.startswith("wheel@"), answers
    return found


def test_what_waits_is_shown_as_a_worker_shows_what_it_holds(site: Site) -> None:
    """Key by key the same as a real worker's, which holds a task that did not go through the wheel."""
    site.beat()
    site.worker()
    eta = datetime(2090, 1, 1, tzinfo=UTC)
    waits = site.send(args=(1, "two"), kwargs={"a": b"x".decode()}, countdown=None, eta=eta, priority=3, shadow="alias")
    held = site.app.send_task("mark", eta=eta + timedelta(hours=1), wheel=False)
    inspect = site.app.control.inspect()
    wait_until(lambda: any(map(len, (inspect.scheduled() or {}).values())), "both answer")
    wait_until(lambda: all(len(found) == 1 for found in inspect.scheduled().values()), "both have one")
    by_node = {name.partition("@")[0]: found for name, [found] in inspect.scheduled().items()}
    wheel, worker = by_node["wheel"], by_node["celery"]
    assert (wheel["request"]["id"], worker["request"]["id"]) == (waits.id, held.id)
    assert wheel.keys() == worker.keys()
    assert wheel["request"].keys() == worker["request"].keys()
    assert wheel["request"]["delivery_info"].keys() == worker["request"]["delivery_info"].keys()
    assert wheel["eta"] == "2090-01-01T00:00:00+00:00"
    assert wheel["priority"] == worker["priority"]
    request = wheel["request"]
    assert (request["name"], request["type"], request["args"]) == ("alias", "mark", "(1, 'two')")
    assert request["delivery_info"]["routing_key"] == "celery"
    assert request["delivery_info"]["priority"] == 3
    found = {name.partition("@")[0]: one for name, one in inspect.query_task(waits.id, held.id, "nobody").items()}
    assert found["wheel"] == {waits.id: ["scheduled", request]}
    assert found["celery"][held.id][0] == "scheduled"


def test_a_list_that_is_cut_says_so_and_can_be_printed(site: Site) -> None:
    beat = site.beat()
    with site.app.producer_or_acquire() as producer:
        for n in range(1_003):
            site.app.send_task("mark", (n,), countdown=3_600 + n, producer=producer)
    wait_until(lambda: sum(site.app.wheel.counts().tasks.values()) == 1_003, "all wait")
    found = answer_of_the_wheel(site.app.control.inspect().scheduled())
    assert len(found) == 1_001
    assert [one["request"]["args"] for one in found[:3]] == ["(0,)", "(1,)", "(2,)"]
    assert found[-1].keys() == found[0].keys()
    assert found[-1]["request"].keys() == found[0]["request"].keys()
    assert found[-1]["request"]["name"].startswith("and about 3 more")
    assert "shows 1000 tasks of 1003" in beat.said()
    printed = site.output("inspect", "scheduled")
    assert "and about 3 more" in printed
    assert "1 node online" in printed


def test_every_question_is_answered_on_the_command_line(site: Site) -> None:
    site.beat()
    result = site.send()
    expected = {
        "ping": "pong",
        "report": "software -> celery",
        "conf": "wheel_store",
        "stats": '"pending": 1',
        "scheduled": result.id,
        "active": "- empty -",
        "reserved": "- empty -",
        "registered": "- empty -",
        "active_queues": "- empty -",
        "revoked": "- empty -",
        "clock": "clock",
    }
    for command, said in expected.items():
        output = site.output("inspect", command)
        assert said in output, output
        assert "wheel@" in output
        assert "rror" not in output, output
    assert result.id in site.output("inspect", "query_task", result.id)
    assert "1 node online" in site.output("status")


def test_stats_have_a_workers_keys_and_a_part_of_their_own(site: Site) -> None:
    site.beat()
    site.worker()
    site.send()
    found = {name.partition("@")[0]: one for name, one in site.app.control.inspect().stats().items()}
    wheel, worker = found["wheel"], found["celery"]
    assert worker.keys() <= wheel.keys()
    assert worker["broker"].keys() - wheel["broker"].keys() <= {"alternates", "transport_options"}
    assert "password" not in wheel["broker"]
    assert wheel["wheel"]["pending"] == 1
    assert list(wheel["wheel"]["shards"]) == ["0"]
    [waiting] = site.app.wheel.pending().items  # in an hour: the holder does not have it in memory yet
    assert wheel["wheel"]["shards"]["0"]["next_due_ms"] == waiting.due_ms


def test_what_is_for_workers_is_not_answered_but_to_who_asks_by_name(site: Site) -> None:
    site.beat()
    assert site.app.control.pool_grow(2, reply=True) == []
    [name] = site.app.control.inspect().ping()
    [answer] = site.app.control.broadcast("pool_grow", {"n": 2}, destination=[name], reply=True)
    assert "is a scheduler and runs no tasks" in answer[name]["error"]
    assert site.app.control.ping(destination=["celery@elsewhere"]) == []
    [answer] = site.app.control.ping(pattern="wheel@*", matcher="glob")
    assert answer == {name: {"ok": "pong"}}
    site.app.control.broadcast("shutdown", destination=[name])
    assert site.app.control.ping()


def test_of_two_schedulers_each_answers_about_its_own(site: Site) -> None:
    """On one host their names differ, and nothing comes twice."""
    first = site.beat(wheel_shards=2)
    second = site.celery("beat", "--pidfile", "", "-l", "INFO", wheel_shards=2)
    wait_until(lambda: "at epoch" in second.said() and "listens" in second.said(), "they share the shards")
    site.app.conf.wheel_shards = 2
    sent = {site.app.send_task("mark", countdown=3_600).id for _ in range(40)}
    wait_until(lambda: sum(site.app.wheel.counts().tasks.values()) == 40, "all wait")
    answers = site.app.control.inspect().scheduled()
    assert len(answers) == 2
    found = [[one["request"]["id"] for one in lists] for lists in answers.values()]
    assert all(found)
    assert sorted(itertools.chain(*found)) == sorted(sent)
    assert len(site.app.control.revoke(sorted(sent), reply=True)) == 2
    wait_until(lambda: len(site.signals()) == 40, "each is in the books")
    assert len({one[1] for one in site.signals()}) == 40
    first.signal(signal.SIGTERM)
    code, said = first.end()
    assert code == 0, said
    wait_until(lambda: second.said().count("at epoch") == 2, "the other has both")
    assert [list(one["wheel"]["shards"]) for one in site.app.control.inspect().stats().values()] == [["0", "1"]]


def test_the_node_comes_back_after_the_broker_did(site: Site) -> None:
    beat = site.beat()
    site.server.client().save()
    site.server.restart()
    wait_until(lambda: beat.said().count("listens") >= 2, "it listens again")
    assert "pong" in site.output("inspect", "ping")
    assert beat.is_alive()


def test_it_can_be_switched_off(site: Site) -> None:
    beat = site.celery("beat", "--pidfile", "", "-l", "INFO", wheel_control=False)
    wait_until(lambda: "at epoch" in beat.said(), "the shard is held")
    assert site.app.control.ping() == []
    result = site.send()
    site.app.wheel.cancel(result)
    wait_until(lambda: site.app.backend.get_state(result.id) == "REVOKED", "the books are kept all the same")
    assert "listens" not in beat.said()


def test_gossip_does_not_take_the_node_for_a_worker(site: Site) -> None:
    """A worker would wait for its vote in elections."""
    site.beat()
    worker = site.celery("worker", "-P", "solo", "-l", "DEBUG", "-n", "one@host")
    wait_until(lambda: "ready." in worker.said(), "the worker is ready")
    site.celery("worker", "-P", "solo", "-n", "two@host")
    wait_until(lambda: "two@host joined the party" in worker.said(), "gossip hears of another worker")
    seen = site.server.client().pubsub()
    seen.psubscribe("*wheel.heartbeat")
    wait_until(lambda: (seen.get_message(timeout=1) or {}).get("type") == "pmessage", "the node's heart beats")
    seen.close()
    assert "wheel@" not in worker.said()
