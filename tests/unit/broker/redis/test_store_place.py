"""The place of a store as Redis keeps it: enough to find the store, without secrets."""

from pathlib import Path
from socket import gethostname

import pytest

from celery_wheel.store.place import shown_place


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://me:secret@db:5432/shop?password=secret&sslmode=require", "postgresql://db:5432/shop"),
        ("postgresql://me:secret@h1:1,h2:2/shop", "postgresql:///shop?host=h1%3A1&host=h2%3A2"),
    ],
)
def test_a_database_is_named_without_user_and_password(url: str, place: str) -> None:
    assert shown_place(url) == place


def test_a_file_is_named_with_its_folder_and_its_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown_place("sqlite:///wheel.sqlite3") == f"{tmp_path}/wheel.sqlite3 on {gethostname()}"
