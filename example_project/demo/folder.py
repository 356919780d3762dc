"""The run folder: emptied before a run, kept after it, used by one run at a time."""

import fcntl
import os
import shutil
from pathlib import Path
from typing import IO

from demo.errors import DemoError

MARK = "made-by-demo.lock"  #: the demo empties no folder without this file


def take(folder: Path) -> IO[str]:
    """Empty the folder and lock it until the returned file is closed."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / MARK
    if not mark.exists() and any(folder.iterdir()):
        raise DemoError(f"{folder} holds files that no demo made; empty it or name another folder with --run-dir")
    held = mark.open("a+")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        held.close()
        raise DemoError(f"another demo is running in {folder}; end it first") from error
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry != mark:
            os.unlink(entry)
    return held
