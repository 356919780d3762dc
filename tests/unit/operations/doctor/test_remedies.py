"""The remedy of a finding fits its cause and the project, and can be followed as it is printed."""

from collections import Counter
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery as PlainCelery

from celery_wheel import Celery
from celery_wheel.conf import Conf
from celery_wheel.operations.doctor import Finding, Grade, Installation, broker, settings, shards, split_remedy, store
from celery_wheel.store import open_store
from tests.kit.holder import Holder, hour_of


def wheel(kind: Any = Celery, **values: Any) -> Any:
    app = kind("proj", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.update(values)
    return app


@pytest.mark.parametrize(
    ("message", "problem", "remedy"),
    [
        ("the disk is full; nothing was written; free space", "the disk is full; nothing was written", "Free space."),
        ("no client; run: pip install 'kombu[sqs]'", "no client", "Run: pip install 'kombu[sqs]'"),
        ("wheel_tick must be a time, got 5", "wheel_tick must be a time, got 5", ""),
    ],
)
def test_the_remedy_is_the_last_part_of_an_errors_message(message: str, problem: str, remedy: str) -> None:
    assert split_remedy(message) == (problem, remedy)


@pytest.mark.parametrize(
    ("app", "remedy"),
    [
        (wheel(PlainCelery), "Make the app with celery_wheel.Celery, or call celery_wheel.install(app)."),
        (wheel(wheel_enabled=False), "Set wheel_enabled = True."),
        (wheel(wheel_min_delay=7_200), "Set wheel_min_delay, 7200 s now, well below the visibility timeout."),
    ],
    ids=["plain", "disabled", "short delays"],
)
def test_the_visibility_finding_names_a_delays_cause(app: Any, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "in_django", lambda: False)
    [found] = settings.check_visibility(Installation(app))
    assert found.remedy == remedy


def test_a_list_of_destinations_that_lacks_queues_in_use_is_a_warning(tmp_path: Path) -> None:
    app = wheel(wheel_destinations=["mail"], wheel_store=f"sqlite:///{tmp_path}/wheel.sqlite3", wheel_shards=2)
    with closing(open_store(app.conf.wheel_store, shards=2)) as opened:
        holder = Holder(opened, 1)
        rows = [holder.row(queue=queue, routing_key=queue) for queue in ("mail", "evil", "evil")]
        holder.apply(rows=rows, tally=Counter(map(hour_of, rows)))
    with Installation(app) as site:
        own, waiting = settings.destinations(site)
        assert own.text.endswith("queues and exchanges of this app: celery: delayed tasks for them are refused")
        assert waiting.text.startswith("2 pending tasks for evil are rejected when they are due")
        assert waiting.remedy == "Add the names, or a pattern for them, to wheel_destinations."
        app.conf.wheel_destinations = ["@app", "mail", "evil"]
        [found] = settings.destinations(site)
        assert found.grade is Grade.OK
        app.conf.wheel_destinations = None
        assert list(settings.destinations(site)) == []


@pytest.mark.parametrize("kind", [PlainCelery, Celery])
def test_limits_without_reports_of_workers_are_a_warning(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "in_django", lambda: False)
    app = wheel(kind, wheel_limits={"tenant": {"concurrency": 5}, "mailgun": {"rate": "100/m"}})
    assert bool(list(settings.check_reports(Installation(app)))) is (kind is PlainCelery)
    app.steps["consumer"] = {"proj.steps:Own"}
    [found] = settings.check_reports(Installation(app))
    assert "the concurrency of tenant counts each task as in flight until its max_runtime is over" in found.text
    assert found.remedy.startswith("Make the app with celery_wheel.Celery, or call celery_wheel.install(app).")
    app.conf.wheel_limits = {"mailgun": {"rate": "100/m"}}
    assert list(settings.check_reports(Installation(app))) == []


def test_in_django_the_app_is_installed_by_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "in_django", lambda: True)
    app = wheel(PlainCelery)
    app.config_from_object(SimpleNamespace(CELERY_TIMEZONE="UTC"), namespace="CELERY")
    assert settings.installing(Conf(app)) == (
        'Have "django_wheel" in INSTALLED_APPS, and set CELERY_BEAT_SCHEDULER = "wheel".'
    )


@pytest.mark.parametrize(
    ("url", "text", "remedy"),
    [
        (
            "postgresql://user@127.0.0.1:1/wheel",
            "cannot be reached",
            "Check that the server runs and that this host reaches it.",
        ),
        (
            "sqlite:////nowhere/none.sqlite3",
            "a scheduler makes it when it starts: celery -A proj beat -S wheel",
            "Start one there, or let wheel_store name the file of a scheduler that runs.",
        ),
    ],
    ids=["a server that does not answer", "a file that does not exist"],
)
def test_a_store_that_cannot_be_opened_is_an_error_with_its_remedy(url: str, text: str, remedy: str) -> None:
    with Installation(wheel(wheel_store=url)) as site:
        [found] = store.check(site)
    assert found.grade is Grade.ERROR
    assert text in found.text
    assert remedy in found.remedy


def test_a_broker_that_does_not_answer_is_to_be_reached(tmp_path: Path) -> None:
    with Installation(wheel(wheel_store=f"sqlite:///{tmp_path}/none.sqlite3")) as site:
        [found] = broker.check(site)
        assert "cannot be reached" in found.text
        assert found.remedy == "Check that it runs and that this host reaches it, or correct broker_url."
        [unseen] = shards.check_clocks(site)
    assert (unseen.grade, "the broker and the store" in unseen.text) == (Grade.NOTE, True)


@pytest.mark.parametrize(
    ("host", "grade"), [("127.0.0.1", Grade.NOTE), ("localhost", Grade.NOTE), ("redis.example", Grade.WARNING)]
)
def test_the_persistence_of_a_developers_redis_is_a_note(host: str, grade: Grade) -> None:
    info = {"aof_enabled": "0", "appendfsync": "everysec", "maxmemory_policy": None}
    site = SimpleNamespace(app=wheel(broker_url=f"redis://{host}:6379/0"), redis_settings=info)
    [found] = broker.power(site)  # type: ignore[arg-type]
    assert found.grade is grade
    assert ("On a machine for development" in found.remedy) is (grade is Grade.NOTE)
    [hidden] = broker.eviction(site)  # type: ignore[arg-type]
    assert hidden.grade is Grade.NOTE, "nobody can mend a setting that is hidden"


@pytest.mark.parametrize(
    ("syncs", "local", "grade"),
    [
        ("always", False, Grade.OK),
        ("everysec", False, Grade.WARNING),
        ("everysec", True, Grade.NOTE),
        ("no", False, Grade.WARNING),
    ],
)
def test_a_redis_that_does_not_sync_each_write_has_a_sentence(syncs: str, local: bool, grade: Grade) -> None:
    info = {"aof_enabled": "1", "appendfsync": syncs}
    app = wheel(broker_url=f"redis://{'localhost' if local else 'redis.example'}:6379/0")
    [_, found] = broker.power(SimpleNamespace(app=app, redis_settings=info))  # type: ignore[arg-type]
    assert (found.about, found.grade) == ("appendfsync", grade)
    assert ("the last second of accepted messages" in found.text) is (syncs == "everysec")
    assert ("Set appendfsync to always" in found.remedy) is (syncs != "always")


@pytest.mark.parametrize(("host", "config"), [("redis.example", True), ("redis.example", False), ("localhost", True)])
def test_a_user_of_redis_who_may_do_everything_is_noted(host: str, config: bool) -> None:
    info = {"aof_enabled": "1", "appendfsync": "always" if config else None, "maxmemory_policy": "noeviction"}
    site = SimpleNamespace(
        app=wheel(broker_url=f"redis://{host}:6379/0"),
        transport="redis",
        broker=object(),
        broker_name=host,
        store=None,
        redis_settings=info,
    )
    wide = [one for one in broker.check(site) if one.about == "rights"]  # type: ignore[arg-type]
    assert len(wide) == (config and host != "localhost")


def test_a_finding_has_the_names_of_the_projects_settings() -> None:
    app = PlainCelery("proj", set_as_current=False)
    app.config_from_object(SimpleNamespace(JOBS_TIMEZONE="UTC"), namespace="JOBS")
    texts = "wheel_shards is 3, as wheel_native is not", "Correct wheel_store, or broker_url."
    spelled = "JOBS_WHEEL_SHARDS is 3, as wheel_native is not", "Correct JOBS_WHEEL_STORE, or JOBS_BROKER_URL."
    assert Finding("x", Grade.ERROR, *texts).spelled(Conf(app)) == Finding("x", Grade.ERROR, *spelled)
