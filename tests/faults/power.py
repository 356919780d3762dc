"""Power cuts: what a store's files may be after one, by a log of every write and sync.

``kill -9`` keeps the page cache. Here the processes of a store run under ``writes.c``, which logs their writes. A cut
kills them all, and ``Disk`` puts in the place of their files what a disk may have: all that was synced, and of the rest
whatever the cut's ``Loss`` says. The broker lives on, and so do producers and workers.

::

    log      w x 0 4096 │ b x │ e x │ w x 4096 4096 │ w x 0 4096 │ cut
    disk     x has the first write for certain; the other two each as a whole, in part by sectors of 512 bytes, or not
             a file that was made, renamed or unlinked has its new name for certain once its folder was synced

Non-promises of the model: a sync that has returned is believed (no disk that lies), and no sector is half written.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import struct
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from tests.kit.servers import absent

SOURCE = Path(__file__).with_name("writes.c")
SECTOR = 512

_RECORD = struct.Struct("<QQQQIc3x")


@dataclass(frozen=True, slots=True)
class Event:
    """A record of the log; see ``writes.c``."""

    kind: str
    path: str
    at: int
    size: int
    thread: int
    data: bytes = b""
    us: int = 0  #: wall clock


class WriteLog:
    """The library, compiled, and its log; ``environment`` is for processes that write below ``folder``."""

    def __init__(self, folder: Path, own: Path) -> None:
        compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
        if compiler is None:
            absent("a C compiler, to log the writes of a process,")
        own.mkdir(parents=True, exist_ok=True)
        owner = folder.stat()
        os.chown(own, owner.st_uid, owner.st_gid)
        library, self.path = own / "writes.so", own / "writes.log"
        command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(SOURCE)]
        subprocess.run(command, check=True, timeout=60)
        self.environment = {
            "LD_PRELOAD": str(library),
            "WRITES_FOLDER": str(folder),
            "WRITES_LOG": str(self.path),
        }

    def events(self) -> Iterator[Event]:
        """Iterate over the events so far."""
        if not self.path.exists() or not self.path.stat().st_size:
            return
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log:
            at, end = 0, len(log)
            while at + _RECORD.size <= end:
                offset, size, thread, us, length, kind = _RECORD.unpack_from(log, at)
                at += _RECORD.size
                path, at = log[at : at + length].decode(), at + length
                data = log[at : at + size] if kind == b"w" else b""
                at += len(data)
                yield Event(kind.decode(), path, offset, size, thread, data, us)

    def clear(self) -> None:
        """Begin anew; nothing may be written meanwhile. The starter of the next processes has the file open."""
        self.path.open("wb").close()


@dataclass(slots=True, eq=False)
class _File:
    """A file as it is on the disk for certain, and the events since; it may have several names, or none."""

    durable: bytearray = field(default_factory=bytearray)
    waiting: list[Event] = field(default_factory=list)


#: Names and what each means after a change of a folder, which a file system makes whole or not at all.
_Change = Mapping[str, _File | None]


class Loss:
    """Decides what a cut leaves of the events that were not synced."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        #: For each file: nothing, all, the first events and a torn one, or any sectors of any of them.
        self._way = rng.choice(("nothing", "all", "first", "any"))

    def keeps_name(self) -> bool:
        return self._rng.random() < 0.5

    def apply(self, content: bytearray, waiting: list[Event]) -> None:
        rng, way = self._rng, self._way
        kept = {"nothing": 0, "all": len(waiting), "first": rng.randint(0, len(waiting)), "any": len(waiting)}[way]
        for number, event in enumerate(waiting[: kept + (way == "first")]):
            torn = (way == "first" and number == kept) or way == "any"
            if event.kind == "t":
                if not torn or rng.random() < 0.5:
                    _resize(content, event.size)
                continue
            share = rng.choice((0.0, 0.5, 1.0)) if torn else 1.0
            for start in range(event.at - event.at % SECTOR, event.at + len(event.data), SECTOR):
                if rng.random() < share:
                    first, last = max(start, event.at), min(start + SECTOR, event.at + len(event.data))
                    _write(content, first, event.data[first - event.at : last - event.at])


class Disk:
    """The files below a folder, as a log has changed them since ``base``, the contents by path at its begin.

    A change of names (made, renamed, linked, unlinked) is certain once its folder was synced.
    """

    def __init__(self, base: Mapping[str, bytes]) -> None:
        self._files = {path: _File(bytearray(content)) for path, content in base.items()}
        self._names: dict[str, _File] = dict(self._files)  #: those that the disk has for certain
        self._changes = defaultdict[str, list[_Change]](list)  #: folder → changes of names that were not synced
        self._begun: dict[tuple[int, str], tuple[list[Any], int]] = {}

    def see(self, event: Event) -> None:
        path = event.path
        if path.endswith("-shm"):
            return  # every start makes it anew
        if event.kind == "o":
            self._change({path: _File()})
        elif event.kind == "u":
            self._change({path: None})
        elif event.kind in "rl":
            old, _, new = path.partition("\0")
            file = self._files.get(old) or _File()
            self._change({new: file} if event.kind == "l" else {old: None, new: file})
        elif event.kind == "b":
            waiting = self._files[path].waiting if path in self._files else self._changes[path]
            self._begun[event.thread, path] = waiting, len(waiting)
        elif event.kind == "e":
            self._end_sync(path, *self._begun.pop((event.thread, path), ([], 0)))
        else:
            if path not in self._files:
                self._change({path: _File()})
            self._files[path].waiting.append(event)

    def _change(self, change: _Change) -> None:
        _rename(self._files, change)
        self._changes[str(Path([*change][-1]).parent)].append(change)

    def _end_sync(self, path: str, waiting: list[Any], count: int) -> None:
        """Make the first events certain; a sync of another process that began later may have made more so."""
        if waiting is self._changes[path]:
            for change in waiting[:count]:
                _rename(self._names, change)
        elif path in self._files and waiting is self._files[path].waiting:
            for event in waiting[:count]:
                _apply(self._files[path].durable, event)
        for key, (other, begun) in self._begun.items():
            if other is waiting:
                self._begun[key] = other, max(0, begun - count)
        del waiting[:count]

    def cut(self, rng: random.Random) -> dict[str, bytes]:
        """Return the contents by path that a cut at this moment leaves."""
        loss, names, found = Loss(rng), dict(self._names), dict[str, bytes]()
        for change in chain.from_iterable(self._changes.values()):
            if loss.keeps_name():
                _rename(names, change)
        contents = dict[int, bytes]()
        for path, file in names.items():
            if id(file) not in contents:
                content = bytearray(file.durable) if file.waiting else file.durable
                loss.apply(content, file.waiting)
                contents[id(file)] = bytes(content)
            found[path] = contents[id(file)]
        return found

    @property
    def unsynced(self) -> int:
        """Events that a cut may lose, but those of lock files, which say who has a lock and are never synced."""
        files = (file for path, file in self._files.items() if not path.endswith(".lock"))
        return sum(map(len, self._changes.values())) + sum(len(file.waiting) for file in files)


def contents_of(folder: Path) -> dict[str, bytes]:
    """Return the contents by path of the files below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("-shm"))
    return {str(path): path.read_bytes() for path in files}


def put(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Replace all files below a folder; its folders stay, and their owner has the new files."""
    for path in folder.rglob("*"):
        if path.is_file() and str(path) not in contents:
            path.unlink()
    owner = folder.stat()
    for path, content in ((Path(name), content) for name, content in contents.items()):
        is_new = not path.exists()
        path.write_bytes(content)
        if is_new:
            os.chown(path, owner.st_uid, owner.st_gid)


def _rename(names: dict[str, _File], change: _Change) -> None:
    for name, file in change.items():
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


def _apply(content: bytearray, event: Event) -> None:
    if event.kind == "t":
        _resize(content, event.size)
    else:
        _write(content, event.at, event.data)


def _write(content: bytearray, at: int, data: bytes) -> None:
    if len(content) < at:
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))
