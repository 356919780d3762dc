"""Every Python example of README.md and docs/ runs: here, or in the suite that has the servers which it needs."""

import ast
import importlib.util
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery.schedules import crontab

from celery_wheel import Celery
from celery_wheel.conf import Conf
from celery_wheel.recurring.celery_schedules import from_celery
from celery_wheel.scheduler.sources.beat_entries import declared_entries
from celery_wheel.testing import VirtualWheel
from tests.kit.manual import PAGES, README, ROOT, code, page

#: Page → the test that runs those of its examples that are no settings.
RUN_BY = {
    "README.md": "tests/test_docs_examples.py",
    "control-celery.md": "tests/integration/remote_control/test_remote_control.py",
    "django.md": "tests/admin/test_installing.py",
    "groups.md": "tests/test_docs_examples.py",
    "leaving.md": "tests/integration/drain/test_leaving_doc.py",
    "loading.md": "tests/spark/test_docs.py",
    "encryption.md": "tests/test_docs_examples.py",
    "metrics.md": "tests/admin/test_metrics.py",
    "orchestration.md": "tests/orchestrators/test_page.py",
    "permissions.md": "tests/test_docs_examples.py",
    "pipeline-jobs.md": "tests/spark/test_docs.py",
    "pipeline.md": "tests/spark/test_docs.py",
    "recurring.md": "tests/test_docs_examples.py",
    "schedule-import.md": "tests/test_docs_examples.py",
    "schedules.md": "tests/test_docs_examples.py",
    "scheduling-many.md": "tests/integration/scheduler/test_shards.py",
    "tasks.md": "tests/test_docs_examples.py",
    "testing.md": "tests/unit/testing/test_plugin.py",
    "transactional.md": "tests/admin/transactional/test_requests.py",
    "users-schedules.md": "tests/test_docs_examples.py",
}


def blocks(name: str) -> list[str]:
    return list(code(PAGES[README] if name == README.name else page(name), "python"))


def is_settings(block: str) -> bool:
    """Whether an example does nothing but set settings: of Django, of a module with settings, or of ``app.conf``."""
    targets = [
        ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        for node in ast.parse(block).body
        if isinstance(node, ast.Assign | ast.AugAssign)
    ]
    known = ("app.conf.", "wheel_", "beat_")
    return len(targets) == len(ast.parse(block).body) and all(one.isupper() or one.startswith(known) for one in targets)


SETTINGS = [(path.name, block) for path in PAGES for block in blocks(path.name) if is_settings(block)]


def test_each_page_with_examples_has_a_test_that_runs_them() -> None:
    others = {path.name for path in PAGES for block in blocks(path.name) if not is_settings(block)}
    assert others == set(RUN_BY)
    for name, test in RUN_BY.items():
        assert name.removesuffix(".md") in (ROOT / test).read_text(encoding="utf-8"), f"{test} does not read {name}"


@pytest.mark.parametrize(("name", "block"), SETTINGS, ids=[f"{name}-{n}" for n, (name, _) in enumerate(SETTINGS)])
def test_the_settings_of_an_example_are_valid(name: str, block: str) -> None:
    app = Celery("proj", broker="redis://redis.internal/0", set_as_current=False)
    names: dict[str, Any] = {"app": app, "INSTALLED_APPS": [], "crontab": crontab}
    exec(block, names)  # noqa: S102 - our own page
    assert [one for one in names["INSTALLED_APPS"] if importlib.util.find_spec(one) is None] == []
    found = {key.lower().removeprefix("celery_"): value for key, value in names.items()}
    app.conf.update({key: value for key, value in found.items() if key.startswith(("wheel_", "beat_"))})
    assert list(Conf(app).problems()) == []
    assert app.conf.beat_scheduler in {"celery.beat:PersistentScheduler"} | {
        one.name for one in entry_points(group="celery.beat_schedulers")
    }
    for entry in app.conf.beat_schedule.values():
        assert from_celery(entry["schedule"], 0), entry


NAMES = ("remind", "sync", "send", "mail", "cancel_order", "index", "refresh", "import_data", "charge", "notify")


@pytest.fixture
def shop() -> Iterator[dict[str, Any]]:
    """The names that the examples of pending tasks use: an app with a wheel of the test's own, and its tasks."""
    app = Celery("shop", broker="redis://redis.internal/0", set_as_current=False)

    def run(*numbers: int) -> None: ...

    names = {name: app.task(name=f"shop.tasks.{name}", shared=False)(run) for name in NAMES}
    with VirtualWheel(app) as wheel:
        sent = {name: names["remind"].apply_async(countdown=60) for name in ("first", "second", "result")}
        yield {"__name__": "shop.tasks", "app": app, "wheel": wheel, **names, **sent}


def test_the_examples_of_tasks_run(shop: dict[str, Any]) -> None:
    examples = blocks("tasks.md")
    assert len(examples) == 9
    for block in examples:
        exec(block, shop)  # noqa: S102 - our own page
        if "of" in shop:
            shop["app"].conf.wheel_group = shop["of"]  # the module of the page is not there
    states = [shop["app"].wheel.get(shop[name].id).state for name in ("first", "second", "result")]
    assert states == ["cancelled"] * 3
    assert shop["wheel"].pending_of("shop.tasks.cancel_order") == []


def test_the_examples_of_groups_run(shop: dict[str, Any]) -> None:
    examples = blocks("groups.md")
    assert len(examples) == 3
    shop |= {"order": SimpleNamespace(id=7), "user": SimpleNamespace(id=9)}
    for block in examples:
        exec(block, shop)  # noqa: S102 - our own page
        assert not list(Conf(shop["app"]).problems())
    groups = {row.task: row.group for row in shop["app"].wheel.pending().items if row.group is not None}
    assert groups == {
        "shop.tasks.charge": "stripe",
        "shop.tasks.notify": "user:9",
    }


def test_the_example_of_the_readme_runs(shop: dict[str, Any]) -> None:
    [example] = [block for block in blocks("README.md") if "app.wheel.cancel" in block]
    exec(example, shop)  # noqa: S102 - our own page
    shop["wheel"].run_all()
    assert shop["app"].wheel.get(shop["result"].id).state == "cancelled"
    assert shop["wheel"].ran_of("shop.tasks.cancel_order") == []


def test_the_schedule_of_the_readme_runs_on_weekdays_at_9_in_berlin(shop: dict[str, Any]) -> None:
    [example] = [block for block in blocks("README.md") if "schedules.create" in block]
    exec(example, shop)  # noqa: S102 - our own page
    instants = shop["app"].wheel.schedules.preview("report", 300)
    assert {(instant.hour, str(instant.tzinfo)) for instant in instants} == {(9, "Europe/Berlin")}
    assert {instant.weekday() for instant in instants} == {0, 1, 2, 3, 4}


def test_the_examples_of_recurring_schedules_run() -> None:
    examples = blocks("recurring.md")
    assert len(examples) == 4
    names: dict[str, Any] = {}
    for block in examples:
        exec(block, names)  # noqa: S102 - our own page


def test_the_examples_of_schedules_run() -> None:
    app: Any = Celery("shop", broker="memory://", timezone="Europe/Paris", set_as_current=False)

    def run(**_: Any) -> None: ...

    for name in ("report", "backup"):
        app.task(run, name=f"shop.tasks.{name}", shared=False)
    examples = blocks("schedules.md")
    assert len(examples) == 8
    with VirtualWheel(app) as wheel:
        names: dict[str, Any] = {"app": app, "wheel": wheel}
        for block in examples:
            exec(block, names)  # noqa: S102 - our own page
    assert set(declared_entries(app)) == {"nightly", next(name for name in app.tasks if name.endswith("refresh"))}


def test_the_examples_of_users_schedules_run_and_keep_the_quota() -> None:
    app: Any = Celery("shop", broker="memory://", set_as_current=False)

    def run(**_: Any) -> None: ...

    app.task(run, name="shop.tasks.report", shared=False)
    save, show, change = blocks("users-schedules.md")
    with VirtualWheel(app) as wheel:
        names: dict[str, Any] = {"app": app}
        exec(save, names)  # noqa: S102 - our own page
        ran = {(one.task, one.kwargs["customer"]) for one in wheel.advance(days=7)}
        assert ran == {("shop.tasks.report", 42)}
        names["save"](42, "monthly", "0 9 1 * *", "Europe/Paris")
        names["save"](42, "daily", "45 7 * * mon-fri", "Europe/Paris")  # a change is not one more
        for wrong in ("0 9 * * fri", "* * * * *", "0 25 * * *"):
            with pytest.raises(ValueError, match=r"3 schedules|15 minutes|hour must"):
                names["save"](42, "another", wrong, "Europe/Paris")
        exec(show, names)  # noqa: S102
        exec(change, names)  # noqa: S102
        assert names["schedules"].list().items == []


def test_the_app_of_the_readme_is_one_of_celery() -> None:
    names: dict[str, Any] = {}
    [example] = [block for block in blocks("README.md") if "app = Celery(" in block]
    exec(example, names)  # noqa: S102 - our own page
    assert names["app"].wheel


def test_an_audited_cancel_has_its_actor(shop: dict[str, Any]) -> None:
    cancel, erase = [block for block in blocks("permissions.md") if "app.wheel" in block]
    request = SimpleNamespace(user=SimpleNamespace(get_username=lambda: "ann"))
    exec(cancel, {**shop, "task_id": shop["first"].id, "request": request})  # noqa: S102
    [entry] = shop["app"].wheel.audit().items
    assert (entry.actor, entry.reason) == ("ann", "customer called")
    names = {**shop, "request": request}
    exec(erase, names)  # noqa: S102
    assert names["receipt"].matches("tenant:42")


def test_the_keys_of_the_page_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENCRYPTION", "SIGNING"):
        monkeypatch.setenv(f"WHEEL_{name}_KEYS", f"{'n' * 32} {'o' * 32}")
    app = Celery("proj", broker="redis://redis.internal/0", set_as_current=False)
    [example] = blocks("encryption.md")
    exec(example, {"app": app})  # noqa: S102 - our own page
    assert not list(Conf(app).problems())
    assert len(Conf(app).encryption_keys) == len(Conf(app).signing_keys) == 2


def test_the_task_for_lines_of_a_crontab_runs_them(tmp_path: Path) -> None:
    [example] = blocks("schedule-import.md")
    names: dict[str, Any] = {"__name__": "shop", "app": Celery("shop", set_as_current=False)}
    exec(example, names)  # noqa: S102 - our own page
    names["shell"](f"echo done > {tmp_path}/said")
    assert (tmp_path / "said").read_text() == "done\n"
