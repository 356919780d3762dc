"""New stores in files: copies of a file with the tables, which take SQLAlchemy twenty milliseconds of a core to make.

All copies of one kind have the same identity, which a broker takes for one store.
"""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from celery_wheel.store import open_store


def new_file(path: Path, **settings: Any) -> str:
    """Write the file of a store that nobody has used; returns its URL.

    Args:
        settings: of ``open_store``, which the test opens the file with.
    """
    path.write_bytes(_with_tables(**settings))
    return f"sqlite:///{path}"


@cache
def _with_tables(**settings: Any) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "wheel.sqlite3"
        open_store(f"sqlite:///{path}", **settings).close()
        return path.read_bytes()
