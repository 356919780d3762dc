"""The parts that all tests share: servers that a process starts once, patience, and logs beside a failure."""

import logging
import math
import os
import signal
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import pytest_timeout
from hypothesis import HealthCheck, settings

from tests.kit import processes
from tests.kit.patience import patience
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.rabbit import ON_RABBITMQ, RabbitServer
from tests.kit.servers.redis import RedisServer


@pytest.fixture(autouse=True)
def _logging_is_left_as_it_was() -> Iterator[None]:
    """Restore the levels that Celery's commands set for the whole process: other tests expect warnings."""
    root = logging.getLogger()
    level, disabled = root.level, root.manager.disable
    yield
    root.setLevel(level)
    logging.disable(disabled)


@pytest.fixture(scope="session")
def _rabbit_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    with RabbitServer(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


@pytest.fixture
def rabbit_server(request: pytest.FixtureRequest, _rabbit_of_the_session: RabbitServer) -> RabbitServer:
    """Return the one RabbitMQ; each test makes a virtual host of its own by ``rabbit_server.fresh()``."""
    groups = {mark.args[0] for mark in request.node.iter_markers("xdist_group")}
    assert ON_RABBITMQ.args[0] in groups, "a parameter that chooses this server has the mark ON_RABBITMQ"
    return _rabbit_of_the_session


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Start a PostgreSQL; each test makes a database of its own by ``postgres.new_database()``."""
    with PostgresServer() as server:
        _postgres.append(server)
        yield server
        _postgres.remove(server)


#: The server of the session, once it has started.
_postgres: list[PostgresServer] = []


@pytest.fixture(scope="session")
def _redis_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_server(_redis_of_the_session: RedisServer) -> RedisServer:
    """Return an empty Redis, which no test may pause, kill or configure."""
    _redis_of_the_session.client().flushall()
    return _redis_of_the_session


if "STALLS" in os.environ:
    import_module("tests.kit.stalls")

#: Examples of Hypothesis have no deadline; ``make check`` has a tenth of them.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", settings.get_profile("patient"), max_examples=10)
settings.load_profile("patient")

#: Tests that start processes, which take the longest: they begin first, and the short ones fill the gaps.
FIRST = (
    "tests/faults",
    "tests/network",
    "tests/replicas",
    "tests/integration/demo",
    "tests/simulation",
    "tests/year",
    "tests/integration",
    "tests/browser",
    "tests/spark/test_cluster",
    "tests/spark/test_docs_jobs",
)


#: Seconds of each test in its last run, and the name of these in pytest's cache.
_took: dict[str, float] = {}
TOOK = "tests/took"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", type=float, metavar="SECONDS", help="leave out tests that took longer last time")


def pytest_configure() -> None:
    """Let SIGINT interrupt: a shell that starts pytest in the background lets it and its processes ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Group tests for ``--dist loadgroup``: tests that share fixtures of their module run in one process.

    The tests on RabbitMQ do too: a start of its server takes seven seconds of a core.
    """
    if items and (most_s := items[0].config.option.quick) is not None:
        cache: Any = items[0].config.cache
        took = cache.get(TOOK, {})
        items[:] = [item for item in items if took.get(item.nodeid, 0.0) <= most_s]
    for item in items:
        fixtures = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009 - it is nowhere public
        if "rabbit_server" in fixtures:
            item.add_marker(ON_RABBITMQ)
        elif any(fixture.scope == "module" for found in fixtures.values() for fixture in found):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    yield
    _name_groups(items)
    items.sort(key=lambda item: [item.nodeid.startswith(folder) for folder in FIRST], reverse=True)


def _name_groups(items: list[pytest.Item]) -> None:
    """Name the group of a test at the end of its id, where the controller of pytest-xdist looks for it.

    pytest-xdist 3.8 writes it into ``_nodeid``, which pytest reads no more since 9.2: all groups were ignored, and each
    process made the fixtures of each module.
    """
    for item in items:
        groups = sorted({mark.args[0] for mark in item.iter_markers("xdist_group")})
        if groups and getattr(item.config.option, "loadgroup", False) and "@" not in item.nodeid.rpartition("]")[2]:
            own: Any = item
            own._id = own._id.parse(f"{item.nodeid}@{'_'.join(groups)}")


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Any:
    """Stretch the time-out of a test, which is for a quiet machine, like any other."""
    return pytest_timeout.pytest_timeout_set_timer(item, settings._replace(timeout=patience(settings.timeout)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    report = yield
    if report.failed:
        report.sections.extend((f"printed by {name}", words) for name, words in processes.last_words())
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if terminalreporter.stats.keys() & {"failed", "error"}:
        seed = config.getoption("randomly_seed", None)
        terminalreporter.write_line(f"in the same order once more: pytest --randomly-seed={seed}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how long a test took, by the id that it has without the name of its group.

    A test that failed is quicker than any: it is run again until it passes.
    """
    name, bracket, rest = report.nodeid.rpartition("]")
    name += bracket + rest.partition("@")[0]
    took_s = report.duration + (0.0 if report.when == "setup" else _took.get(name, 0.0))
    _took[name] = -math.inf if report.failed else took_s


def pytest_runtest_logfinish() -> None:
    processes.forget_ended()
    for server in _postgres:
        server.drop_databases()


def pytest_sessionfinish(session: pytest.Session) -> None:
    processes.kill_all()
    cache: Any = getattr(session.config, "cache", None)  # none with ``-p no:cacheprovider``
    if cache is not None and not hasattr(session.config, "workerinput"):
        cache.set(TOOK, {**cache.get(TOOK, {}), **_took})
