"""Many hostile messages, in parts that add up: each layer in a process, guided by coverage where atheris is installed.

::

    python -m tests.hostile --count 1000000 --seed 1 --keep folder      all layers
    python -m tests.hostile archive commands --count 20000              some of them
    python -m tests.hostile --write --keep folder                       tests/hostile/corpus anew, from what was kept

``--keep``: the corpus grows there, a file for each message that has reached a new line; a later part begins with it.
Prints the counts of each layer and its failures, each with its first message. Ends with 1 where a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile.mutate import mutated

#: Where each layer is, and its part of 1,000 messages. Instrumented: the modules that read messages.
LAYERS = {
    "wheel-queue": ("engine_layers", "WheelQueue", 220),
    "run-reports": ("engine_layers", "Reports", 90),
    "inbox": ("engine_layers", "Inbox", 150),
    "commands": ("engine_layers", "Commands", 170),
    "drain-file": ("file_layers", "DrainFile", 100),
    "archive": ("file_layers", "Archive", 60),
    "results": ("file_layers", "Results", 40),
    "import-redbeat": ("import_layers", "RedBeat", 60),
    "import-crontab": ("import_layers", "Crontab", 60),
    "import-rq-scheduler": ("import_layers", "RqScheduler", 40),
    "django-celery-beat": ("import_layers", "DjangoRows", 10),
}
INSTRUMENTED = [
    "celery_wheel.broker.reader",
    "celery_wheel.broker.envelope",
    "celery_wheel.engine.intake.inbox",
    "celery_wheel.engine.intake.stored_form",
    "celery_wheel.store.message_pack",
    "celery_wheel.operations.drain.file",
    "celery_wheel.operations.schedule_import",
    "celery_wheel.scheduler.sources.django_rows",
    "celery_wheel.archive.reader",
    "celery_wheel.results.reader",
    "celery_wheel.recurring",
    "celery_wheel.values.text",
]
CORPUS = Path(__file__).parent / "corpus"

#: The longest mutation, in bytes, except those that the mutations themselves make longer.
MAX_BYTES = 2**16

#: The most bytes of a layer's messages in the tree.
MAX_KEPT = 12_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile")
    parser.add_argument("layers", nargs="*", choices=[*LAYERS, []], metavar="layer", help=", ".join(LAYERS))
    parser.add_argument("--count", type=int, default=10_000, help="messages of all layers together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for the corpus")
    parser.add_argument("--blind", action="store_true", help="do not use atheris")
    parser.add_argument("--write", action="store_true", help="write the small ones of the kept corpus into the tree")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        return _write(options.keep)
    if options.child:
        return run(options.layers[0], options.count, options.seed, options.keep, options.blind)
    chosen = options.layers or list(LAYERS)
    whole, code = sum(LAYERS[name][2] for name in chosen), 0
    for name in chosen:
        count = -(-options.count * LAYERS[name][2] // whole)
        command = [sys.executable, "-m", "tests.hostile", name, "--child", f"--count={count}", f"--seed={options.seed}"]
        command += [f"--keep={options.keep}"] if options.keep else []
        ended = subprocess.run([*command, *(["--blind"] if options.blind else [])], stderr=subprocess.PIPE, text=True)
        if ended.returncode:
            print(f"{name}: failed\n{ended.stderr[-3_000:]}" if ended.returncode != 1 else f"{name}: failed")
            code = 1
    return code


def layer_of(name: str, folder: Path, **changes: Any) -> Any:
    module, kind, _ = LAYERS[name]
    return getattr(import_module(f"tests.hostile.{module}"), kind)(folder, **changes)


def kept(name: str, keep: Path | None = None) -> list[bytes]:
    """Return the messages that earlier runs kept: each reaches lines that the others do not."""
    path = CORPUS / f"{name}.json"
    found = [one.encode("latin-1") for one in json.loads(path.read_text())] if path.exists() else []
    if keep is not None and (keep / name).is_dir():
        found += [one.read_bytes() for one in sorted((keep / name).iterdir())]
    return found


def run(name: str, count: int, seed: int, keep: Path | None, is_blind: bool) -> int:
    """Judge the mutations of one layer, in this process; returns 1 where a promise was broken."""
    logging.disable(logging.WARNING)  # errors are for the judge; nobody reads them here
    logging.lastResort = None
    atheris = None if is_blind or find_spec("atheris") is None else import_module("atheris")
    with tempfile.TemporaryDirectory(prefix="hostile-", dir=_shared_memory()) as folder:
        if atheris is None:
            return _blindly(name, count, seed, keep, Path(folder))
        with atheris.instrument_imports(include=INSTRUMENTED, enable_loader_override=False):
            import_module(f"tests.hostile.{LAYERS[name][0]}")
        return _guided(atheris, name, count, seed, keep, Path(folder))


def _shared_memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a store of a batch needs no disk


def _blindly(name: str, count: int, seed: int, keep: Path | None, folder: Path) -> int:
    from tests.hostile.judge import Judge

    judge = Judge(layer_of(name, folder))
    seeds = [*judge.layer.seeds, *kept(name, keep)]
    for data in seeds:
        judge.take(data)
    for number in range(count - len(seeds)):
        random = Random(f"{seed} {number}")
        judge.take(mutated(random.choice(seeds), random, seeds))
    return _end(judge)


def _guided(atheris: Any, name: str, count: int, seed: int, keep: Path | None, folder: Path) -> int:
    """Let libFuzzer choose which message is mutated next; it ends the process itself, after ``count`` messages."""
    from tests.hostile.judge import Judge

    judge = Judge(layer_of(name, folder))
    seeds = [*judge.layer.seeds, *kept(name)]
    corpus = keep / name if keep is not None else folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds):
        (corpus / f"seed-{number:04}").write_bytes(data)
    left = count

    def take(data: bytes) -> None:
        nonlocal left
        left -= 1
        judge.take(data)
        if left == 0:
            code = _end(judge)
            sys.stdout.flush()
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(code)  # libFuzzer would end the process with 0

    def mutate(data: bytes, max_size: int, number: int) -> bytes:
        return mutated(data, Random(number), seeds)[:max_size]

    flags = [f"-seed={seed}", f"-max_len={MAX_BYTES}", "-use_counters=0", "-timeout=3600", "-rss_limit_mb=0"]
    flags += ["-verbosity=0", f"-artifact_prefix={folder}/"]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], take, custom_mutator=mutate)
    atheris.Fuzz()
    return 2  # it never comes here


def _write(keep: Path) -> int:
    """Write the smallest messages of a kept corpus: at most 40 of a layer, and MAX_KEPT bytes together."""
    CORPUS.mkdir(exist_ok=True)
    for name in LAYERS:
        found, size = list[str](), 0
        for data in sorted({one for one in kept(name, keep) if one}, key=lambda one: (len(one), one)):
            if len(found) < 40 and size + len(data) < MAX_KEPT:
                found.append(data.decode("latin-1"))
                size += len(data)
        (CORPUS / f"{name}.json").write_text(json.dumps(found, indent=0) + "\n")
    return 0


def _end(judge: Any) -> int:
    judge.flush()
    for line in judge.report():
        print(line)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1_024
    print(f"  the process had {peak:,} MiB at its peak", flush=True)
    return 1 if judge.failed else 0


if __name__ == "__main__":
    sys.exit(main())
