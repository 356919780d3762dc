"""The pytest plugin: fixtures ``wheel`` and ``wheel_app``, the marker ``wheel`` and the ini option ``wheel_app``.

pytest loads this module by its entry point wherever celery-wheel is installed, so the module imports nothing else until
a test uses one of the fixtures.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from celery_wheel.testing.wheel import VirtualWheel

MARKER = "wheel(app=…, propagate=True, results='memory', freeze=False): options of the fixture 'wheel' for one test"
NO_APP = (
    "the fixture 'wheel' finds no Celery app: set wheel_app = proj.celery:app in pytest's ini file, or define a "
    "fixture wheel_app that returns the app, or mark the test with @pytest.mark.wheel(app=…)"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("wheel_app", "the Celery app of the fixture 'wheel', as proj.celery:app", default="")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def wheel_app(request: pytest.FixtureRequest) -> Any:
    """The app of the fixture ``wheel``; define a fixture of this name to choose it.

    Otherwise the app comes from the marker, the ini option ``wheel_app``, the fixture ``celery_app``, or is the
    current app.
    """
    named = _marker_options(request).get("app") or request.config.getini("wheel_app")
    if isinstance(named, str) and named:
        from celery.app.utils import find_app

        return find_app(named)
    return named or _celery_app(request) or _current_app()


@pytest.fixture
def wheel(request: pytest.FixtureRequest, wheel_app: Any) -> Iterator[VirtualWheel]:
    """The app's wheel in virtual time: ``wheel.advance(minutes=30)`` runs tasks that fall due, without a broker."""
    from celery_wheel.testing.wheel import VirtualWheel

    options = _marker_options(request)
    options.pop("app", None)
    freeze = options.pop("freeze", False)
    with VirtualWheel(wheel_app, **options) as wheel:
        if freeze:
            wheel.freeze()
        yield wheel


def _marker_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the options of the markers; the marker nearest to the test takes precedence."""
    options: dict[str, Any] = {}
    for mark in request.node.iter_markers("wheel"):
        if mark.args:
            raise pytest.UsageError(f"the marker wheel must have named arguments only, got {mark.args!r}: {MARKER}")
        options = {**mark.kwargs, **options}
    if unknown := options.keys() - {"app", "propagate", "results", "freeze"}:
        raise pytest.UsageError(f"the marker wheel has no option {', '.join(sorted(unknown))}: {MARKER}")
    return options


def _celery_app(request: pytest.FixtureRequest) -> Any:
    """Return the fixture ``celery_app`` of Celery's own plugin or of the test suite; None without one."""
    try:
        return request.getfixturevalue("celery_app")
    except pytest.FixtureLookupError as error:
        if error.argname != "celery_app":
            raise
        return None


def _current_app() -> Any:
    from celery import _state

    app = _state.get_current_app()
    if app is _state.default_app and app.main == "default":
        raise pytest.UsageError(NO_APP)
    return app
