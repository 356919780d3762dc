"""The fixture in suites as users write them, each run by a pytest of its own.

A test's end restores the app, and one test does not affect another. The examples of docs/testing.md run: their files
are written unchanged, and their tests pass.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import celery
import pytest
from celery.worker import state as worker_state

import celery_wheel
from celery_wheel.app import WheelApp
from celery_wheel.conf import Conf
from celery_wheel.testing import VirtualWheel
from celery_wheel.testing.plugin import MARKER
from tests.kit.manual import page
from tests.unit.testing.conftest import NOWHERE

pytest_plugins = ["pytester"]

PROJECT = """
    from {package} import Celery

    app = Celery("proj", broker="redis://127.0.0.1:1/0")

    @app.task
    def remind(order):
        return f"order {{order}}"
"""

TEST = """
    from proj import remind

    def test_reminder(wheel):
        result = remind.apply_async((42,), countdown=1800)
        assert wheel.is_pending(result)
        (ran,) = wheel.advance(minutes=30)
        assert ran.result == "order 42"
"""

INI = "[pytest]\nwheel_app = proj:app\nfilterwarnings = error\n"


def project(pytester: pytest.Pytester, test: str = TEST, package: str = "celery_wheel", ini: str = INI) -> None:
    pytester.makepyfile(proj=PROJECT.format(package=package))
    pytester.makeini(ini)
    if test:
        pytester.makepyfile(test)


def run(pytester: pytest.Pytester, *options: str, **outcomes: int) -> pytest.RunResult:
    result = pytester.runpytest_subprocess("-p", "no:django", "--strict-markers", *options)
    result.assert_outcomes(**outcomes)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("ini", [INI, "[pytest]\n"], ids=["the ini option", "the current app"])
@pytest.mark.parametrize("package", ["celery_wheel", "celery"])
def test_an_app_is_found_whether_of_the_package_or_installed(pytester: pytest.Pytester, ini: str, package: str) -> None:
    project(pytester, package=package, ini=ini)
    if package == "celery":
        pytester.makeconftest("import celery_wheel, proj\n\ncelery_wheel.install(proj.app)\n")
    run(pytester, passed=1)


@pytest.mark.slow
def test_the_app_is_found_by_the_marker_and_by_a_fixture_of_the_suite(pytester: pytest.Pytester) -> None:
    project(pytester, test="", ini="[pytest]\n")
    pytester.makepyfile(
        test_marked="""
            import pytest
            from celery import Celery
            from proj import remind

            Celery("another").set_current()

            @pytest.mark.wheel(app="proj:app")
            def test_by_name(wheel):
                remind.apply_async((42,), countdown=1800)
                assert len(wheel.run_all()) == 1

            @pytest.mark.wheel(app=remind.app, propagate=False)
            class TestByTheAppItself:
                def test_app(self, wheel):
                    assert wheel.app is remind.app
                    assert wheel.propagate is False

                @pytest.mark.wheel(propagate=True)
                def test_the_nearest_marker_counts(self, wheel):
                    assert wheel.app is remind.app
                    assert wheel.propagate is True
        """,
        test_overridden="""
            import pytest
            import proj

            @pytest.fixture
            def wheel_app():
                return proj.app

            def test_reminder(wheel):
                assert wheel.app is proj.app
        """,
    )
    run(pytester, passed=4)


@pytest.mark.slow
def test_the_app_of_celerys_own_plugin_is_found(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["celery.contrib.pytest"]')
    pytester.makepyfile(
        """
        def test_reminder(celery_app, wheel):
            @celery_app.task
            def add(x, y):
                return x + y

            result = add.apply_async((1, 2), countdown=60)
            assert [one.where for one in wheel.pending] == ["wheel"]
            wheel.advance(minutes=1)
            assert result.get() == 3
        """
    )
    run(pytester, passed=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fixture", "says"),
    [
        ("", "set wheel_app = proj.celery:app in pytest's ini file"),
        ("@pytest.fixture\ndef celery_app(nowhere): pass\n", "fixture 'nowhere' not found"),
    ],
    ids=["none", "a broken fixture"],
)
def test_a_missing_app_is_an_error_with_a_remedy(pytester: pytest.Pytester, fixture: str, says: str) -> None:
    pytester.makeconftest(f"import pytest\n\n{fixture}")
    pytester.makepyfile("def test_nothing(wheel): pass")
    run(pytester, errors=1).stdout.fnmatch_lines([f"*{says}*"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("marker", "says"),
    [("wheel('proj')", "must have named arguments only, got"), ("wheel(ap='proj')", "has no option ap")],
)
def test_an_invalid_marker_is_refused(pytester: pytest.Pytester, marker: str, says: str) -> None:
    project(pytester, f"import pytest\n\n@pytest.mark.{marker}\ndef test_nothing(wheel): pass")
    run(pytester, errors=1).stdout.fnmatch_lines([f"*{says}*"])


@pytest.mark.slow
def test_a_failed_assertion_shows_the_pending_tasks(pytester: pytest.Pytester) -> None:
    project(
        pytester,
        """
        from proj import remind

        def test_reminder(wheel):
            result = remind.apply_async((42,), countdown=1800)
            wheel.advance(minutes=30)
            assert wheel.is_pending(result)

        def test_nothing_is_pending(wheel):
            remind.apply_async((43,), countdown=1800)
            assert wheel.pending == []
        """,
    )
    ran = "*not pending: <proj.remind(42) ran at * -> 'order 42', id *"
    run(pytester, failed=2).stdout.fnmatch_lines_random([ran, "*<proj.remind(43) due *, queue 'celery', *"])


@pytest.mark.slow
def test_a_tasks_own_error_fails_the_test(pytester: pytest.Pytester) -> None:
    project(
        pytester,
        """
        from proj import app

        @app.task
        def fail():
            order = None
            return order.total

        def test_failing(wheel):
            fail.apply_async(countdown=5)
            wheel.run_all()
        """,
    )
    said = ["*return order.total*", "*'NoneType' object has no attribute 'total'*"]
    run(pytester, failed=1).stdout.fnmatch_lines(said)


@pytest.mark.slow
def test_tests_in_several_processes_and_in_any_order_do_not_affect_each_other(pytester: pytest.Pytester) -> None:
    project(
        pytester,
        """
        import pytest
        from proj import app, remind

        @pytest.mark.parametrize("n", range(20))
        def test_alone(wheel, n):
            assert (wheel.pending, wheel.ran) == ([], [])
            remind.apply_async((n,), countdown=60, task_id="same")
            assert [one.args for one in wheel.pending] == [(n,)]
            if n % 2:
                assert wheel.run_next().result == f"order {n}"

        def test_without_a_wheel():
            assert app.conf.broker_url == "redis://127.0.0.1:1/0"
            assert "now" not in vars(app)
        """,
    )
    run(pytester, "-n", "2", passed=21)


@pytest.mark.slow
def test_a_suite_without_the_fixture_imports_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing_was_loaded():
            loaded = {name.partition(".")[0] for name in sys.modules}
            assert not loaded & {"celery", "kombu", "sqlalchemy", "billiard"}
            assert sorted(name for name in sys.modules if name.startswith("celery_wheel")) == [
                "celery_wheel", "celery_wheel.testing", "celery_wheel.testing.plugin"
            ]
        """
    )
    run(pytester, passed=1)


@pytest.mark.slow
def test_markers_and_options_are_documented(pytester: pytest.Pytester) -> None:
    assert "@pytest.mark.wheel(app=" in pytester.runpytest_subprocess("--markers").stdout.str()
    assert "wheel_app (string)" in pytester.runpytest_subprocess("--help").stdout.str()


@pytest.mark.slow
@pytest.mark.parametrize("module", ["celery_wheel.testing", "celery_wheel.testing.wheel"])
def test_only_the_plugin_imports_pytest(module: str) -> None:
    program = f"import sys; sys.modules['pytest'] = None; import {module}; print('ok')"
    done: Any = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "ok\n", done.stderr


#: Attributes that Celery makes at their first use.
LAZY = {"control", "events", "timezone", "Task", "AsyncResult", "GroupResult", "loader", "_loader_cache"}


def state_of(app: Any) -> dict[str, Any]:
    own = {name: value for name, value in vars(app).items() if name not in LAZY}
    amqp = vars(app).get("amqp")
    return {
        "class": type(app),
        "own": own,
        "amqp": amqp and (type(amqp), dict(vars(amqp))),
        "changes": dict(app.conf.changes),
        "revoked": set(worker_state.revoked),
        "stamps": dict(worker_state.revoked_stamps),
        "call": celery.Task.__call__,
        "traces": [task.__trace__ for task in app.tasks.values()],
    }


def use(app: Any) -> None:
    with VirtualWheel(app) as wheel:
        add = app.tasks["proj.add"]
        add.apply_async((1, 2), countdown=60)
        add.apply_async((1, 2), countdown=60).revoke()
        add.delay(1, 2)
        app.tasks["proj.flaky"].delay(1)
        wheel.run_all()
        assert len(wheel.ran) == 4


def fail_in(app: Any) -> None:
    with pytest.raises(KeyError, match="no"), VirtualWheel(app) as wheel:  # noqa: PT012 - the error leaves the wheel
        app.tasks["proj.fail"].apply_async(countdown=60)
        wheel.run_all()


@pytest.mark.parametrize("kind", [celery_wheel.Celery, celery.Celery])
@pytest.mark.parametrize("touched", [False, True])
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("use", [use, fail_in])
def test_the_app_is_restored_exactly(
    make_app: Callable[..., Any], kind: Any, touched: bool, eager: bool, use: Callable[[Any], None]
) -> None:
    app = make_app(kind, task_always_eager=eager)
    assert app.tasks["proj.add"]
    if touched:
        assert app.pool
        assert app.amqp.producer_pool
        assert app.amqp.send_task_message
    before = state_of(app)
    use(app)
    assert state_of(app) == before
    assert isinstance(app, WheelApp) == (kind is celery_wheel.Celery)
    assert app.conf.task_always_eager is eager


def test_one_wheel_does_not_affect_another(make_app: Callable[..., Any]) -> None:
    app = make_app()
    with VirtualWheel(app) as wheel:
        result = app.tasks["proj.add"].apply_async((1, 2), countdown=60, task_id="same")
        result.revoke()
        store = Path(Conf(app).store.removeprefix("sqlite:///"))
        assert wheel.pending
        assert store.exists()
    assert not store.parent.exists()
    with VirtualWheel(app) as wheel:
        assert (wheel.pending, wheel.ran, wheel.skipped) == ([], [], [])
        result = app.tasks["proj.add"].apply_async((1, 2), countdown=60, task_id="same")
        assert result.state == "PENDING"
        assert len(wheel.run_all()) == 1


def test_settings_of_a_django_project_are_covered_in_their_spelling(make_app: Callable[..., Any]) -> None:
    class Settings:
        CELERY_BROKER_URL = NOWHERE
        CELERY_TASK_ALWAYS_EAGER = False
        CELERY_WHEEL_STORE = "postgresql://nobody@127.0.0.1:1/none"
        CELERY_WHEEL_SHARDS = 8
        CELERY_WHEEL_ENABLED = False

    app = celery_wheel.Celery("proj", set_as_current=False)
    app.config_from_object(Settings, namespace="CELERY")
    app.conf.update(CELERY_WHEEL_MIN_DELAY=10, CELERY_TASK_ALWAYS_EAGER=True)

    @app.task(name="proj.add", shared=False)
    def add(x: int, y: int) -> int:
        return x + y

    assert (Conf(app).shards, Conf(app).enabled, app.conf.task_always_eager) == (8, False, True)
    with VirtualWheel(app) as wheel:
        assert not app.conf.task_always_eager
        result = add.apply_async((1, 2), countdown=60)
        assert [one.where for one in wheel.pending] == ["wheel"]
        wheel.run_all()
        assert result.get() == 3
    assert (Conf(app).shards, Conf(app).enabled, app.conf.task_always_eager) == (8, False, True)
    assert Conf(app).store == Settings.CELERY_WHEEL_STORE


def test_the_app_may_keep_its_own_result_backend(make_app: Callable[..., Any]) -> None:
    app = make_app(result_backend="cache+memory://")
    with VirtualWheel(app, results="app") as wheel:
        assert wheel.app.backend.as_uri() == "memory:///"
        result = app.tasks["proj.add"].apply_async((1, 2), countdown=60)
        wheel.run_all()
    assert result.get() == 3
    with pytest.raises(ValueError, match="'memory' or 'app'"):
        VirtualWheel(app, results="redis")


DOCS = page("testing.md")
FILES = dict(re.findall(r"```(?:python|ini)\n# (\S+)\n(.*?)```", DOCS, re.DOTALL))


@pytest.mark.slow
def test_the_examples_run(pytester: pytest.Pytester) -> None:
    assert FILES.keys() == {"shop.py", "test_shop.py", "pytest.ini"}
    for name, text in FILES.items():
        (pytester.path / name).write_text(text, encoding="utf-8")
    pytester.runpytest_subprocess("-p", "no:django", "-W", "error").assert_outcomes(passed=2)


def test_every_name_of_the_wheel_exists() -> None:
    named = set(re.findall(r"\bwheel\.([a-z_]+)", DOCS)) - {"mark"}
    assert {"advance", "run_all", "pending_of"} <= named - {"wheel"}
    assert all(hasattr(VirtualWheel, name) for name in named - {"ran", "skipped"}), named


def test_every_option_of_the_marker_is_documented() -> None:
    options = set(re.findall(r"(\w+)=", MARKER))
    assert options == {"app", "propagate", "results", "freeze"}
    assert all(f"{option}=" in DOCS for option in options)
