"""An app whose broker and result backend do not exist: a test that connects to them fails."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import celery_wheel

NOWHERE = "redis://127.0.0.1:1/0"


def add_tasks(app: Any) -> None:
    @app.task(name="proj.add", shared=False)
    def add(x: int, y: int) -> int:
        return x + y

    @app.task(name="proj.fail", shared=False)
    def fail(text: str = "no") -> None:
        raise KeyError(text)

    @app.task(name="proj.flaky", shared=False, bind=True, max_retries=2)
    def flaky(self: Any, good_on: int) -> int:
        if self.request.retries < good_on:
            raise self.retry(countdown=60 * 2**self.request.retries, exc=OSError("away"))
        return int(self.request.retries)

    @app.task(name="proj.again", shared=False, bind=True)
    def again(self: Any, times: int) -> None:
        if times:
            self.apply_async((times - 1,), countdown=600)

    @app.task(name="proj.sorry", shared=False)
    def sorry(failed: str) -> str:
        return failed

    @app.task(name="proj.now", shared=False, bind=True)
    def now(self: Any) -> str:
        return str(self.app.now().isoformat())


@pytest.fixture
def make_app() -> Iterator[Callable[..., Any]]:
    apps: list[Any] = []

    def make(kind: Any = celery_wheel.Celery, **settings: Any) -> Any:
        app = kind("proj", broker=NOWHERE, backend=NOWHERE, set_as_current=False)
        app.conf.update(settings)
        add_tasks(app)
        apps.append(app)
        return app

    yield make
    for app in apps:
        app.close()


@pytest.fixture
def wheel_app(make_app: Callable[..., Any], request: pytest.FixtureRequest) -> Any:
    return make_app(**getattr(request, "param", {}))


def with_settings(**values: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("wheel_app", [values], indirect=True, ids=[", ".join(values)])


@pytest.fixture
def add(wheel_app: Any) -> Any:
    return wheel_app.tasks["proj.add"]


@pytest.fixture
def tasks(wheel_app: Any) -> Any:
    return wheel_app.tasks


def names(ran: list[Any]) -> list[tuple[str, tuple[Any, ...]]]:
    return [(one.task, one.args) for one in ran]
