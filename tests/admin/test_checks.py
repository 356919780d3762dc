"""Each system check: the cases in which it warns, those in which it does not, and its hint."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import INFO, CheckMessage
from django.core.checks.registry import registry
from django.db import connections
from django.test import override_settings
from kombu import Queue

import django_wheel.checks
from celery_wheel.store import open_store
from django_wheel import project
from django_wheel.checks import check_live, check_settings, check_tables
from tests.admin.conftest import Configure
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.redis import RedisServer
from tests.kit.site import celery_app

REDIS = {"broker_url": "redis://localhost:1/0"}


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """Start a server of the test's own: tests fill it, and change what it does when it is full."""
    with RedisServer(tmp_path / "redis") as server:
        yield server


def ids(found: list[CheckMessage]) -> list[str]:
    assert all(one.hint for one in found)
    return [str(one.id).removeprefix("django_wheel.") for one in found]


def test_a_correct_site_has_no_warnings() -> None:
    assert check_settings(None) == []


def test_a_site_without_an_app_of_the_wheel_is_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "uses_wheel", lambda app: False)
    assert ids(check_settings(None)) == ["W001"]
    assert check_live(None) == []


def test_limits_without_reports_of_workers_are_warned_of(conf: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    conf(wheel_limits={"tenant": {"concurrency": 5}})
    assert check_settings(None) == []
    monkeypatch.setitem(celery_app.steps, "consumer", {"proj.steps:Own"})
    [found] = check_settings(None)
    assert (found.id, found.hint is not None) == ("django_wheel.W017", True)
    assert "do not report the ends of runs: the concurrency of tenant" in found.msg


def test_an_invalid_setting_is_an_error(conf: Configure) -> None:
    conf(wheel_shards=0)
    (one,) = check_settings(None)
    assert (one.id, "WHEEL_SHARDS must be a whole number" in one.msg) == ("django_wheel.E002", True)
    assert check_live(None) == []


def test_a_database_that_django_does_not_have_is_an_error(conf: Configure) -> None:
    conf(wheel_store="django://other")
    one = check_settings(None)[0]
    assert (one.id, "'other', which DATABASES does not have" in one.msg) == ("django_wheel.E015", True)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"wheel_store": "sqlite://relative.sqlite3"}, ["E002"]),
        ({"wheel_store": "/var/lib/wheel.sqlite3"}, ["E002"]),
        ({"task_queues": [Queue("wheel.0"), Queue("celery")]}, ["W006"]),
        ({"task_queues": [Queue("wheel.7")]}, []),
        # A task waits in a worker for longer than Redis hides it.
        ({**REDIS, "wheel_enabled": False}, ["W007"]),
        ({**REDIS, "wheel_min_delay": 3_601}, ["W007"]),
        ({**REDIS, "wheel_min_delay": 60, "broker_transport_options": {"visibility_timeout": 30}}, ["W007"]),
        ({**REDIS, "wheel_min_delay": 60}, []),
        ({"wheel_enabled": False, "broker_url": "amqp://localhost"}, []),
    ],
)
def test_a_setting_has_its_finding(conf: Configure, settings: dict[str, Any], found: list[str]) -> None:
    conf(**settings)
    assert ids(check_settings(None)) == found
    assert check_tables(None, ["default"]) == []


@pytest.mark.parametrize(("options", "found"), [({}, ["W005"]), ({"transaction_mode": "IMMEDIATE"}, [])])
def test_a_sqlite_database_that_upgrades_its_locks_is_warned_about(
    conf: Configure, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], found: list[str]
) -> None:
    conf(wheel_store="django://default")
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", options)
    assert ids(check_settings(None)) == found


def test_a_locked_file_matters_most_for_tasks_scheduled_in_transactions(conf: Configure) -> None:
    conf(wheel_store="django://default", wheel_transactional=True)
    [found] = check_settings(None)
    assert (found.id, "Scheduling a task is such a write" in found.msg) == ("django_wheel.W005", True)


@pytest.mark.parametrize("store", [None, "django://nowhere"])
def test_a_store_outside_of_the_transactions_database_is_an_error(conf: Configure, store: str | None) -> None:
    conf(wheel_transactional=True, **({"wheel_store": store} if store else {}))
    [found] = check_settings(None)
    assert (found.id, "WHEEL_STORE" in found.msg) == ("django_wheel.E013", True)
    assert found.hint


def test_naive_times_that_are_read_as_utc_are_warned_about() -> None:
    with override_settings(USE_TZ=False):
        assert ids(check_settings(None)) == ["W009"]
        with override_settings(TIME_ZONE="UTC"):
            assert check_settings(None) == []


def test_a_store_that_the_first_scheduler_makes_is_no_reason_for_a_warning(
    conf: Configure, tmp_path: Path, redis: RedisServer
) -> None:
    conf(wheel_store=f"sqlite:///{tmp_path}/none.sqlite3", broker_url=redis.url)
    found = check_live(None)
    assert [(one.id, one.level) for one in found] == [("django_wheel.I012", INFO)]
    conf(broker_url="redis://127.0.0.1:1/0")
    assert ids(check_live(None)) == ["I012", "W011"]


def test_a_server_that_does_not_answer_is_an_error_that_asks_for_the_server(conf: Configure) -> None:
    conf(wheel_store="postgresql://user@127.0.0.1:1/wheel")
    [found] = check_live(None)
    said = (found.id, found.hint)
    assert said == ("django_wheel.E003", "Check that the server runs and that this host reaches it.")


@pytest.mark.django_db
def test_an_unmigrated_store_is_an_error(conf: Configure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    conf(wheel_store="django://default")
    (tmp_path / "site.sqlite3").touch()
    monkeypatch.setitem(connections["default"].settings_dict, "NAME", str(tmp_path / "site.sqlite3"))
    assert ids(check_live(None)) == ["E004"]


def test_a_deploy_check_counts_the_messages_in_the_broker(conf: Configure, tmp_path: Path, redis: RedisServer) -> None:
    store = f"sqlite:///{tmp_path}/wheel.sqlite3"
    open_store(store).close()
    conf(wheel_store=store, broker_url="redis://127.0.0.1:1/0")
    (one,) = check_live(None)
    assert (one.id, "cannot be reached" in one.msg) == ("django_wheel.W011", True)

    conf(broker_url=redis.url)
    assert check_live(None) == []
    for n in range(3):
        celery_app.send_task("site.nothing", (n,), countdown=60)
    redis.client().config_set("maxmemory-policy", "allkeys-lru")
    found = check_live(None)
    assert ids(found) == ["W008", "W010"]
    assert "3 delayed tasks wait in the broker for shard 0" in found[1].msg
    assert celery_app.conf.broker_url == redis.url


def test_a_deploy_check_warns_of_a_server_that_a_loss_of_power_damages(
    conf: Configure, postgres: PostgresServer, redis: RedisServer
) -> None:
    store = postgres.new_database()
    open_store(store).close()
    conf(wheel_store=store, broker_url=redis.url)
    found = check_live(None)
    assert ids(found) == ["W018", "W018"]
    assert [one.msg.split(" ")[0] for one in found] == ["fsync", "full_page_writes"]


def test_checks_without_connections_always_run() -> None:
    ours = [one for one in registry.get_checks(include_deployment_checks=True) if "django_wheel" in one.__module__]
    always = [one for one in registry.get_checks() if "django_wheel" in one.__module__]
    assert {one.__name__ for one in always} == {"check_settings", "check_tables"}  # the latter only for a database
    assert len(ours) == 3


def test_every_id_belongs_to_one_check() -> None:
    source = Path(django_wheel.checks.__file__).read_text()
    used = re.findall(r'(?:id="django_wheel\.|, ")([EW]\d{3})"', source)
    assert len(used) == len(set(used))
    in_the_header = set(re.findall(r"([EW]\d{3})  ", source.split('"""')[1]))
    assert set(used) == in_the_header
