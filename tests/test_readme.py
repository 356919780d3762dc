"""The README is the manual: what it names has to exist, and its table of settings is the code's."""

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
TABLE = re.compile(r"<!-- settings: begin -->\n(.*)<!-- settings: end -->", re.DOTALL)


def settings_table() -> str:
    """The table as the settings themselves tell it."""
    from celery_wheel.conf import settings

    rows = [f"| `{name}` | {shown(default)} | {sentence} |" for name, default, sentence in settings()]
    return "\n".join(["", "| setting | default | what it does |", "|---|---|---|", *rows, "", ""])


def shown(default: Any) -> str:
    return f"`{default:_}`" if type(default) is int else f"`{default!r}`"


def code(language: str) -> Iterator[str]:
    return (found[1] for found in re.finditer(rf"```{language}\n(.*?)```", README, re.DOTALL))


def commands() -> set[str]:
    """Every command line, in blocks and in running text."""
    lines = {line.removeprefix("$ ") for block in code("console") for line in block.splitlines()}
    return lines | set(re.findall(r"`([^`\n]+)`", README))


def test_the_table_of_settings_is_that_of_the_code() -> None:
    found = TABLE.search(README)
    assert found is not None
    assert found[1] == settings_table(), f"put this between the marks of README.md:\n{settings_table()}"


def test_every_setting_in_the_text_exists() -> None:
    from celery_wheel.broker.envelope import REDELIVERED
    from celery_wheel.conf import settings

    known = {REDELIVERED, *(name for name, _, _ in settings())}
    named = {name.lower() for name in re.findall(r"(?:CELERY_)?(WHEEL_[A-Z_]+|wheel_[a-z_]+)", TABLE.sub("", README))}
    assert named - {"wheel_"} - management_commands() <= known


def management_commands() -> set[str]:
    return {path.stem for path in (ROOT / "django_wheel/management/commands").glob("wheel_*.py")}


def test_every_command_of_django_exists() -> None:
    named = {found[1] for command in commands() for found in re.finditer(r"manage\.py (wheel_\w+)", command)}
    assert named == management_commands()


def test_every_make_target_exists() -> None:
    named = {found[1] for command in commands() for found in re.finditer(r"\bmake ([a-z-]+)", command)}
    assert {"demo", "test", "services"} <= named <= TARGETS


def test_every_variable_of_make_demo_is_used() -> None:
    named = {found[1] for command in commands() for found in re.finditer(r"\bmake demo ([A-Z]+)=", command)}
    assert named
    assert all(f"$({name})" in MAKEFILE for name in named | {"DATE", "SPEED", "PORT"})


def test_every_command_of_the_wheel_exists() -> None:
    from celery_wheel.cli import wheel

    named = [
        found.groups() for command in commands() for found in re.finditer(r"\bwheel ([a-z-]+)((?: --\w+)*)", command)
    ]
    assert named
    for name, options in named:
        known = {option for parameter in wheel.commands[name].params for option in parameter.opts}
        assert set(options.split()) <= known, name


def test_every_option_of_replay_flights_exists() -> None:
    source = (ROOT / "example_project/flights/management/commands/replay_flights.py").read_text(encoding="utf-8")
    known = set(re.findall(r'add_argument\("(--[a-z]+)"', source))
    section = README.split("## The example project")[1].split("\n## ")[0]
    assert set(re.findall(r"--[a-z-]+", section)) - {"--no-wait"} <= known


def test_every_python_example_parses_and_what_it_imports_exists() -> None:
    for block in code("python"):
        for node in ast.walk(ast.parse(block)):
            # Those of django_wheel need a Django project: tests/admin/test_readme_examples.py
            if isinstance(node, ast.ImportFrom) and not str(node.module).startswith("django_wheel"):
                assert all(hasattr(import_module(str(node.module)), alias.name) for alias in node.names)


@pytest.mark.parametrize("attribute", sorted(set(re.findall(r"`celery_wheel\.(\w+)", README))))
def test_every_name_of_the_package_exists(attribute: str) -> None:
    assert hasattr(import_module("celery_wheel"), attribute)


def test_every_extra_and_every_linked_file_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {extra for extras in re.findall(r"celery-wheel\[([\w,]+)\]", README) for extra in extras.split(",")}
    assert named <= set(project["optional-dependencies"])
    assert all((ROOT / target).exists() for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README))


def test_every_pinned_version_is_a_version_and_no_address() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines if not line.startswith("#"))
