"""The wall clock of a process that runs, stepped by a test; waits and the monotonic clock stay the machine's own.

::

    clock = WallClock(tmp_path)             compiles tests/kit/wall_clock.c, with the C compiler of PATH
    start(environment=clock.environment)    a process under it
    clock.set(30_000)                       its wall clock is 30 s ahead of the machine's

Where there is no C compiler, or no LD_PRELOAD, tests are skipped at home and fail in CI (environment variable ``CI``).
"""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.kit.servers import absent

SOURCE = Path(__file__).with_suffix(".c")


class WallClock:
    def __init__(self, folder: Path) -> None:
        compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
        if compiler is None or sys.platform != "linux":
            absent("a C compiler on Linux, to move the wall clock of a process,")
        library, self._file = folder / "wall_clock.so", folder / "wall_clock"
        command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(SOURCE)]
        subprocess.run(command, check=True, timeout=60)
        self._file.write_bytes(bytes(8))
        self.environment = {"LD_PRELOAD": str(library), "WALL_CLOCK_FILE": str(self._file)}

    def set(self, ahead_ms: int) -> None:
        """Step the clock: from now on it is so many milliseconds ahead of the machine's clock, or behind it."""
        with self._file.open("r+b") as file:
            file.write(ahead_ms.to_bytes(8, sys.byteorder, signed=True))
