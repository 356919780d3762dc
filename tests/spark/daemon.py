"""Spark's Python workers, started by a daemon that imports what they need before it forks them.

Spark's own daemon leaves the imports to each worker, from an archive without bytecode: up to two seconds of a core.
``program`` makes the Python that starts PySpark's modules by way of this one.

::

    program(folder)                      workers have celery-wheel and all that it imports
    program(folder, forget=CODE)         workers import celery-wheel themselves, from where Spark says that it is
"""

import gc
import importlib
import os
import runpy
import sys
from pathlib import Path

SCRIPT = """#!/bin/sh
export WHEEL_DAEMON_FORGETS='{forget}'
case "$2" in pyspark.*) shift; set -- {daemon} "$@";; esac
exec {python} "$@"
"""
CODE = "celery_wheel pyspark_wheel"

READING = ("pyspark_wheel", "celery_wheel.pipeline.source.read", "celery_wheel.pipeline.source.stream")
WRITING = ("celery_wheel.pipeline.source.write", "pandas")


def program(folder: Path, forget: str = "") -> str:
    """Write the program into a folder; returns its path, which is for the variable ``PYSPARK_PYTHON``."""
    path = folder / "python"
    path.write_text(SCRIPT.format(python=sys.executable, daemon=__file__, forget=forget))
    path.chmod(0o755)
    return str(path)


def prepare(worker: str) -> None:
    for module in (worker, *READING, *(WRITING if "write" in worker or worker == "pyspark.worker" else ())):
        importlib.import_module(module)
    forget = os.environ["WHEEL_DAEMON_FORGETS"].split()
    for name in [name for name in sys.modules if name.partition(".")[0] in forget]:
        del sys.modules[name]
    gc.freeze()  # a worker collects garbage after every task, which takes as long as there are objects


if __name__ == "__main__":
    # As of a module that is started by -m: the working folder first, not that of this file.
    sys.path[:] = [os.getcwd(), *(path for path in sys.path[1:] if not path.endswith(".zip"))]
    del sys.argv[0]  # now as if the module had been started by itself
    if sys.argv[0] == "pyspark.daemon":
        prepare(sys.argv[1])
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
