"""The examples of docs/django.md run."""

import ast
from datetime import UTC, datetime, timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import django
import pytest
from django.test import override_settings

from celery_wheel.store.sql.store import SqlStore
from celery_wheel.testing import VirtualWheel
from tests.admin.conftest import tallied
from tests.kit.holder import NOW, Holder
from tests.kit.manual import code, commands, page

PAGE = page("django.md")


def test_the_names_that_the_examples_import_exist() -> None:
    imports = [
        node
        for block in code(PAGE, "python")
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("django_wheel")
    ]
    lines = [line for line in commands(PAGE) if line.startswith("from django_wheel")]
    imports += [node for line in lines for node in ast.walk(ast.parse(line)) if isinstance(node, ast.ImportFrom)]
    assert len(imports) >= 2
    for one in imports:
        assert all(getattr(import_module(str(one.module)), alias.name) for alias in one.names)


@pytest.mark.skipif(django.VERSION < (6, 0), reason="Django has tasks of its own from 6.0 on")
def test_a_task_of_django_waits_on_the_wheel(wheel: VirtualWheel) -> None:
    settings, example = (block for block in code(PAGE, "python") if "TASKS =" in block or "django.tasks" in block)
    order = SimpleNamespace(created_at=datetime.now(UTC), pk=42)
    scope: dict[str, Any] = {"order": order, "timedelta": timedelta}
    exec(settings, scope)  # noqa: S102 - our own page
    with override_settings(TASKS=scope["TASKS"]):
        exec(example, {**scope, "__name__": __name__})  # noqa: S102 - our own page
    assert len(wheel.pending) == 1


def test_the_queries_of_the_page_have_results(store: SqlStore) -> None:
    (example,) = [block for block in code(PAGE, "python") if "from django_wheel import wheel" in block]
    tallied(Holder(store), NOW, task="shop.tasks.remind", task_id="mine")
    scope: dict[str, object] = {"task_id": "mine"}
    exec(example, scope)  # noqa: S102 - our own page
    assert len(scope["page"].items) == 1  # type: ignore[attr-defined]
