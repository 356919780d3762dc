"""Settings: defaults, rules, both spellings, unknown names."""

import re
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import celery
import pytest

from celery_wheel.conf import Conf, default_base_scheduler, settings
from celery_wheel.conf.setting import Setting
from celery_wheel.engine.round import Limits
from celery_wheel.errors import SettingError, WheelError
from celery_wheel.scheduler.service import limits_of
from celery_wheel.values.keyring import encryption_keys

MakeConf = Callable[..., Conf]


@pytest.fixture
def make_conf() -> MakeConf:
    def make(namespace: str | None = None, source: Any = None, **values: Any) -> Conf:
        app = celery.Celery("proj", set_as_current=False)
        if source is not None:
            app.config_from_object(source, namespace=namespace)
        app.conf.update(values)
        return Conf(app)

    return make


GOOD: list[tuple[str, Any, str, Any]] = [
    ("wheel_metrics", "127.0.0.1:9808", "metrics", ("127.0.0.1", 9808)),
    ("wheel_metrics", "[::1]:1", "metrics", ("::1", 1)),
    ("wheel_metrics", "wheel.example:65535", "metrics", ("wheel.example", 65_535)),
    *[
        ("wheel_store", url, "store", url)
        for url in (
            "postgresql+psycopg://u:p@h/db",
            "postgres://u:p@h:5432/db?sslmode=require",
            "postgresql://h1:1,h2:2/db",
            "postgresql:///db?host=h1&host=h2",
            "postgresql://[::1]:5432/db",
            "sqlite:///wheel.sqlite3",
            "sqlite:////var/lib/wheel.sqlite3",
            "django://",
            "django://other",
        )
    ],
    ("wheel_namespace", "Proj-1.eu_x", "namespace", "Proj-1.eu_x"),
    ("wheel_shards", 256, "shards", 256),
    ("wheel_tick", 1, "tick_ms", 1000),
    ("wheel_tick", 0.029, "tick_ms", 29),
    ("wheel_tick", timedelta(milliseconds=5), "tick_ms", 5),
    ("wheel_size", 2, "size", 2),
    ("wheel_enabled", False, "enabled", False),
    ("wheel_min_delay", 0.0005, "min_delay_ms", 1),
    ("wheel_min_delay", timedelta(minutes=2), "min_delay_ms", 120_000),
    ("wheel_window", 1, "window_ms", 1000),
    ("wheel_chunk", 1, "chunk", 1),
    ("wheel_durability", "memory", "durability", "memory"),
    ("wheel_history_retention", 3600, "history_retention_ms", 3_600_000),
    ("wheel_history_archive", True, "history_archive", True),
    ("wheel_lease", 0.7, "lease_ms", 700),
    ("wheel_on_broker_rollback", "warn", "on_broker_rollback", "warn"),
    ("wheel_rollback_window", 0, "rollback_window_ms", 0),
    ("wheel_queue_depth", {"mail": 500}, "queue_depth", {"mail": 500}),
    (
        *("wheel_limits", {"tenant": {"concurrency": 5, "rate": "100/m", "max_runtime": 1.5}, "user": {}}, "limits"),
        {"tenant": (5, (100, 60_000), None, 1_500), "user": (None, None, None, None)},
    ),
    ("wheel_rate_limits", {"mail": "5/m", "app.x": 7}, "rate_limits", {"mail": (5, 60_000), "app.x": (7, 1_000)}),
    (
        "wheel_retention",
        {"queue:mail": 3_600, "task:app.x": 7_200.5},
        "retention",
        {"queue:mail": 3_600_000, "task:app.x": 7_200_500},
    ),
    ("wheel_destinations", ["tenant-*", "@app"], "destinations", ("@app", "tenant-*")),
    ("wheel_destinations", None, "destinations", None),
    ("wheel_base_scheduler", "redbeat:RedBeatScheduler", "base_scheduler", "redbeat:RedBeatScheduler"),
    ("wheel_base_scheduler", SimpleNamespace, "base_scheduler", SimpleNamespace),
    ("wheel_keep_eta", True, "keep_eta", True),
    ("wheel_control", False, "control", False),
    ("wheel_mask", ["token", "password"], "mask", ("password", "token")),
    ("wheel_audit_retention", 3600, "audit_retention_ms", 3_600_000),
    ("wheel_results", "/var/lib/wheel", "results", Path("/var/lib/wheel")),
    ("wheel_results", Path("/var/lib/wheel"), "results", Path("/var/lib/wheel")),
]

BAD: list[tuple[str, Any, str]] = [
    *[("wheel_metrics", value, "an address like") for value in (9808, ":9808", "h:0", "h:65536", "::1:9808", "h:", "")],
    *[
        ("wheel_store", value, "a database URL like sqlite:////var/lib/wheel/wheel.sqlite3, postgresql://user@host/dat")
        for value in ("", 5, "://", "wheel.sqlite3", "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://wheel")
    ],
    ("wheel_store", "sqlite:///wheel?mode=ro", "got sqlite://…"),
    ("wheel_store", "postgresq://user@host/database", "got postgresq://…"),
    ("wheel_store", "mysql://user@host/database", "got mysql://…"),
    ("wheel_store", "postgresql+psycopg2://user@host/database", "got postgresql+psycopg2://…"),
    ("wheel_store", "postgresql://user@host", "got postgresql://…"),
    ("wheel_store", "postgresql://user@host/", "got postgresql://…"),
    ("wheel_store", "postgresql://user@host:port/database", "got postgresql://…"),
    ("wheel_namespace", "", "1 to 100 letters, digits, '.', '_' or '-'"),
    ("wheel_namespace", "a b", "1 to 100 letters"),
    ("wheel_namespace", "é", "1 to 100 letters"),
    ("wheel_namespace", "a\n", "1 to 100 letters"),
    ("wheel_shards", 0, "a whole number of at least 1 and at most 256, got 0"),
    ("wheel_shards", 257, "a whole number of at least 1 and at most 256, got 257"),
    ("wheel_shards", True, "a whole number"),
    ("wheel_shards", 1.0, "a whole number"),
    ("wheel_shards", "1", "a whole number"),
    ("wheel_tick", 0.0005, "a time of at least 0.001 s, in whole milliseconds, got 0.0005"),
    ("wheel_tick", 0.0015, "in whole milliseconds"),
    ("wheel_tick", 0, "in whole milliseconds"),
    ("wheel_tick", True, "in whole milliseconds"),
    ("wheel_size", 1, "a whole number of at least 2, got 1"),
    ("wheel_enabled", 1, "True or False, got 1"),
    ("wheel_enabled", "no", "True or False, got 'no'"),
    ("wheel_min_delay", -1, "a time of 0 s or more, got -1"),
    ("wheel_min_delay", float("nan"), "a time of 0 s or more, got nan"),
    ("wheel_min_delay", float("inf"), "a time of 0 s or more, got inf"),
    ("wheel_min_delay", "5", "a time of 0 s or more, got '5'"),
    ("wheel_min_delay", None, "a time of 0 s or more, got None"),
    ("wheel_min_delay", timedelta(seconds=-1), "a time of 0 s or more"),
    ("wheel_window", 0.5, "a time of at least 1 s"),
    ("wheel_window_count", 0, "a whole number of at least 1"),
    ("wheel_chunk", 1001, "a whole number of at least 1 and at most 1,000, got 1001"),
    *(("wheel_queue_depth", value, "a dict like") for value in (5, {"mail": 0}, {"mail": "5"}, {"": 5}, {5: 5})),
    *(
        ("wheel_limits", value, "a dict of limits by class like")
        for value in (
            {"a\nb": {}},
            *("5/s", {5: {}}, {"": {}}, {"tenant": 5}, {"tenant:1": {"weight": 2}}, {"tenant": {"speed": 1}}),
            *({"tenant": {"concurrency": bad}} for bad in (0, -1, 1.5, True, "5", 1_000_001)),
            *({"tenant": {"rate": bad}} for bad in ("0/s", "5/d", 1.5)),
            *({"tenant": {"weight": bad}} for bad in (0, 1_001)),
            *({"tenant": {"max_runtime": bad}} for bad in (0, "1h", float("nan"), 31 * 86_400)),
        )
    ),
    *[
        ("wheel_destinations", value, "None, or a list of patterns of queues and exchanges")
        for value in ("mail", [], [""], [5], ["@other"], {"mail": 1})
    ],
    ("wheel_rate_limits", {"mail": "0/s"}, "a dict of rates like"),
    ("wheel_retention", {"mail": 3_600}, "a dict like"),
    ("wheel_retention", {"queue:": 3_600}, "by queue:"),
    ("wheel_retention", {"queue:mail": 60}, "each a time of at least 3600 s"),
    ("wheel_rate_limits", {"mail": "5/d"}, "a dict of rates like"),
    ("wheel_rate_limits", {5: "5/s"}, "a dict of rates like"),
    ("wheel_rate_limits", "5/s", "a dict of rates like"),
    ("wheel_durability", "none", "'disk' or 'memory', got 'none'"),
    ("wheel_durability", 1, "'disk' or 'memory'"),
    ("wheel_history_retention", 3599, "a time of at least 3600 s, got 3599"),
    ("wheel_history_archive", "yes", "True or False, got 'yes'"),
    ("wheel_lease", 0, "a time of at least 0.1 s, got 0"),
    ("wheel_on_broker_rollback", "ignore", "'replay' or 'warn'"),
    ("wheel_base_scheduler", " ", "a scheduler class or its import path"),
    ("wheel_base_scheduler", 3, "a scheduler class or its import path"),
    ("wheel_keep_eta", None, "True or False, got None"),
    *[("wheel_mask", value, "a list of names") for value in ("password", {"password": 1}, [1], [""], None)],
    ("wheel_audit_retention", 3599, "a time of at least 3600 s, got 3599"),
    ("wheel_results", "results", "the absolute path of a folder, like /var/lib/wheel, or None, got 'results'"),
    ("wheel_results", "", "the absolute path of a folder"),
    ("wheel_results", 5, "the absolute path of a folder"),
]


def test_every_setting_has_its_default_of_the_table_in_its_unit(make_conf: MakeConf) -> None:
    """tests/test_docs.py holds docs/settings.md to the table."""
    table = {name: default for name, default, _ in settings()}
    conf, stated = make_conf(), make_conf(**table)
    found = {attribute: one for attribute, one in vars(Conf).items() if isinstance(one, Setting)}
    assert {one.name for one in found.values()} == {*table}
    for attribute, one in found.items():
        if attribute != "store":
            assert getattr(conf, attribute) == getattr(stated, attribute), attribute
        if attribute.endswith("_ms"):
            assert getattr(conf, attribute) == one.default * 1_000, attribute
    assert re.fullmatch(r"sqlite:////.*/celery-wheel\.sqlite3", conf.store)
    assert stated.store == "sqlite:///…/celery-wheel.sqlite3"
    conf.check()


@pytest.mark.parametrize(("name", "value", "attribute", "read"), GOOD)
def test_a_valid_value_is_read(make_conf: MakeConf, name: str, value: Any, attribute: str, read: Any) -> None:
    conf = make_conf(**{name: value})
    assert getattr(conf, attribute) == read
    assert type(getattr(conf, attribute)) is type(read)
    conf.check()


@pytest.mark.parametrize(("name", "value", "says"), BAD)
def test_an_invalid_value_is_refused(make_conf: MakeConf, name: str, value: Any, says: str) -> None:
    conf = make_conf(**{name: value})
    with pytest.raises(SettingError) as caught:
        conf.check()
    assert str(caught.value).startswith(f"{name} must be ")
    assert says in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, WheelError)


def test_a_value_is_checked_when_it_is_read_and_only_then(make_conf: MakeConf) -> None:
    conf = make_conf(wheel_shards=0)
    assert conf.namespace == "wheel"
    with pytest.raises(SettingError, match="wheel_shards"):
        _ = conf.shards
    conf.app.conf.wheel_shards = 4
    assert conf.shards == 4


def test_check_names_every_invalid_setting(make_conf: MakeConf) -> None:
    with pytest.raises(SettingError) as caught:
        make_conf(wheel_shards=0, wheel_size=1, wheel_tik=3).check()
    lines = str(caught.value).splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["wheel_shards", "wheel_size", "wheel_tik"]


def test_a_password_is_not_quoted(make_conf: MakeConf) -> None:
    with pytest.raises(SettingError) as caught:
        make_conf(wheel_store="user:hunter2@host", wheel_stroe="postgresql://user:hunter2@host/db").check()
    assert "hunter2" not in str(caught.value)


SECRET = "a secret of thirty-two characters"  # noqa: S105 - of nobody


@pytest.mark.parametrize(
    "value",
    [
        SECRET,
        SECRET.encode(),
        [SECRET.encode()],
        [SECRET + "\n"],
        [" " + SECRET],
        [SECRET + "\udcff"],  # as os.environ has a byte that is no UTF-8
        [SECRET, ""],
        [SECRET, SECRET],
        [SECRET[:31]],
        {SECRET: 1},
    ],
)
@pytest.mark.parametrize("name", ["wheel_encryption_keys", "wheel_signing_keys"])
def test_a_secret_is_in_no_error_and_in_no_frame_of_it(make_conf: MakeConf, name: str, value: Any) -> None:
    conf = make_conf(**{name: value})
    with pytest.raises(SettingError, match=f"{name} must be a list of different random texts") as raised:
        getattr(conf, name.removeprefix("wheel_"))
    assert SECRET[:9] not in "".join(traceback.format_exception(raised.value))
    frames = [frame for frame, _ in traceback.walk_tb(raised.value.__traceback__)][1:]
    assert frames
    assert not any(SECRET[:9] in repr(frame.f_locals) for frame in frames)


def test_secrets_that_are_read_do_not_show(make_conf: MakeConf) -> None:
    keys = make_conf(wheel_encryption_keys=["", SECRET]).encryption_keys
    assert keys == ("", SECRET)
    assert SECRET not in f"{keys!r} {vars(encryption_keys(keys))!r}"


def test_settings_under_a_namespace_are_read(make_conf: MakeConf) -> None:
    conf = make_conf("CELERY", SimpleNamespace(CELERY_WHEEL_LEASE=7, CELERY_TIMEZONE="UTC", WHEEL_SHARDS=9))
    assert (conf.lease_ms, conf.shards) == (7000, 1)
    conf.check()


def test_settings_of_a_module_are_read(make_conf: MakeConf, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("wheel_test_config")
    module.wheel_lease = 7  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    conf = make_conf(None, module.__name__)
    assert conf.lease_ms == 7000
    conf.check()


@pytest.mark.parametrize(
    ("namespace", "spelling", "meant"),
    [
        (None, "wheel_tik", "wheel_tick"),
        (None, "wheel_shard", "wheel_shards"),
        (None, "WHEEL_LAESE", "WHEEL_LEASE"),
        (None, "Wheel_lease", "wheel_lease"),
        (None, "wheel_", "wheel_tick"),
        (None, "CELERY_WHEEL_LEASE", "WHEEL_LEASE"),
        ("CELERY", "CELERY_WHEEL_NAMESPCAE", "CELERY_WHEEL_NAMESPACE"),
        ("CELERY", "CELERY_WHEEL_TICK_MS", "CELERY_WHEEL_TICK"),
        ("CELERY", "wheel_windw", "CELERY_WHEEL_WINDOW"),
    ],
)
def test_an_unknown_setting_is_reported(make_conf: MakeConf, namespace: str | None, spelling: str, meant: str) -> None:
    with pytest.raises(SettingError) as caught:
        make_conf(namespace, SimpleNamespace(**{spelling: 1})).check()
    assert str(caught.value) == f"{spelling} is an unknown setting and has no effect; did you mean {meant}?"


@pytest.mark.parametrize(
    ("namespace", "given", "meant"),
    [
        ("CELERY", "WHEEL_STORE", "CELERY_WHEEL_STORE"),
        ("JOBS", "WHEEL_LEASE", "JOBS_WHEEL_LEASE"),
        ("JOBS", "CELERY_WHEEL_LEASE", "JOBS_WHEEL_LEASE"),
    ],
)
def test_a_name_that_the_app_does_not_read_is_named_with_the_right_one(
    make_conf: MakeConf, namespace: str, given: str, meant: str
) -> None:
    conf = make_conf(namespace, SimpleNamespace(**{given: 7, f"{namespace}_WHEEL_SHARDS": 2, "WHEEL_COLOUR": "red"}))
    said = f"{given} has no effect: the Celery app 'proj' reads its settings with namespace={namespace!r}"
    assert list(conf.ignored()) == [(said, f"Rename it to {meant}.")]
    conf.check()  # it may be another package's
    assert list(make_conf(None, SimpleNamespace(WHEEL_LEASE=7)).ignored()) == []


@pytest.mark.parametrize(
    ("installed", "scheduler"),
    [
        (["django_celery_beat"], "django_celery_beat.schedulers:DatabaseScheduler"),
        (["a", "django_celery_beat.apps.BeatConfig"], "django_celery_beat.schedulers:DatabaseScheduler"),
        (["django_celery_beats", "b"], "celery.beat:PersistentScheduler"),
        ([], "celery.beat:PersistentScheduler"),
    ],
)
def test_the_base_scheduler_in_django_is_that_of_django_celery_beat_if_installed(
    make_conf: MakeConf, monkeypatch: pytest.MonkeyPatch, installed: list[str], scheduler: str
) -> None:
    django = SimpleNamespace(settings=SimpleNamespace(configured=True, INSTALLED_APPS=installed))
    monkeypatch.setitem(sys.modules, "django.conf", django)  # type: ignore[arg-type]
    assert default_base_scheduler() == make_conf().base_scheduler == scheduler
    assert make_conf(wheel_base_scheduler="mine:Own").base_scheduler == "mine:Own"
    django.settings = SimpleNamespace(configured=False)
    assert default_base_scheduler() == "celery.beat:PersistentScheduler"


def test_every_setting_has_a_sentence() -> None:
    for name, _, sentence in settings():
        assert name.startswith("wheel_")
        assert sentence.endswith("."), name
        assert "\n" not in sentence


def test_lanes_stay_open_for_as_long_as_a_rollback_may_ask_for_them(make_conf: MakeConf) -> None:
    assert limits_of(make_conf(wheel_rollback_window=3_600)).lane_idle_ms == 3_600_000
    assert limits_of(make_conf(wheel_rollback_window=0)).lane_idle_ms == Limits().lane_idle_ms
