"""What the README shows of django_wheel is there."""

from __future__ import annotations

import ast
from importlib import import_module

from celery_wheel.store.sql import SqlStore
from tests.admin.test_pages import tallied
from tests.stores.samples import NOW, Holder
from tests.test_readme import code, commands


def test_what_it_imports() -> None:
    imports = [
        node
        for block in code("python")
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("django_wheel")
    ]
    lines = [line for line in commands() if line.startswith("from django_wheel")]
    imports += [node for line in lines for node in ast.walk(ast.parse(line)) if isinstance(node, ast.ImportFrom)]
    assert len(imports) >= 2
    for one in imports:
        assert all(getattr(import_module(str(one.module)), alias.name) for alias in one.names)


def test_what_it_asks_the_wheel(store: SqlStore) -> None:
    (example,) = [block for block in code("python") if "from django_wheel import wheel" in block]
    tallied(Holder(store), NOW, task="shop.tasks.remind", task_id="mine")
    scope: dict[str, object] = {"task_id": "mine"}
    exec(example, scope)  # noqa: S102 - our own README
    assert len(scope["page"].items) == 1  # type: ignore[attr-defined]
