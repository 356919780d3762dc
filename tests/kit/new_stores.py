"""New stores in files: copies of a file with the tables, which take SQLAlchemy twenty milliseconds of a core to make.

Each copy has an identity of its own, since brokers and pages tell stores apart by it.
"""

from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID, uuid4

from celery_wheel.store import open_store


def new_file(path: Path, **settings: Any) -> str:
    """Write the file of a store that nobody has used; returns its URL.

    Args:
        settings: of ``open_store``, which the test opens the file with.
    """
    file, identity = _with_tables(**settings)
    assert file.count(identity) == 1, "the identity is in one place of the file"
    path.write_bytes(file.replace(identity, uuid4().hex.encode()))
    return f"sqlite:///{path}"


@cache
def _with_tables(**settings: Any) -> tuple[bytes, bytes]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "wheel.sqlite3"
        with closing(open_store(f"sqlite:///{path}", **settings)) as store:
            identity = UUID(store.uuid).hex.encode()
        return path.read_bytes(), identity
