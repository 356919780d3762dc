"""A short form of the hostile messages on every layer, and the judge, which has to refuse layers that break a promise.

The long form is ``make hostile``.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.operations.schedule_import import READERS, ForeignSchedule
from celery_wheel.store.model import Message, Unreadable
from tests.hostile.__main__ import LAYERS, kept, layer_of
from tests.hostile.engine_layers import Commands, WheelQueue
from tests.hostile.import_layers import RedBeat
from tests.hostile.judge import BATCH, Broken, Judge, Layer
from tests.hostile.mutate import mutated

Read = Message | Unreadable


def judged(layer: Layer, mutations: int, seed: str = "short") -> Judge:
    """Judge the layer's own messages, those that earlier runs kept, and some mutations."""
    judge = Judge(layer)
    seeds = [*layer.seeds, *kept(layer.name)]
    for data in seeds:
        judge.take(data)
    for number in range(mutations):
        random = Random(f"{seed} {number}")
        judge.take(mutated(random.choice(seeds), random, seeds))
    judge.flush()
    return judge


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "django-celery-beat"])
def test_hostile_messages_break_no_promise(name: str, tmp_path: Path) -> None:
    judge = judged(layer_of(name, tmp_path), 2 * BATCH)
    assert not judge.failed, "\n".join(judge.report())
    assert judge.counts["rejected"] + judge.counts["acted on"] > BATCH // 2
    assert judge.counts["accepted"] + judge.counts["acted on"] > 0


@pytest.mark.slow
def test_hostile_rows_of_django_celery_beat_are_read_or_refused() -> None:
    """In a process of its own: the site's settings are for the whole process."""
    command = [sys.executable, "-m", "tests.hostile", "django-celery-beat", "--blind", f"--count={2 * BATCH}"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "failures 0" in ended.stdout


def test_a_seed_repeats_its_mutations() -> None:
    data = RedBeat.good
    assert [mutated(data, Random(n)) for n in range(50)] == [mutated(data, Random(n)) for n in range(50)]
    assert len({mutated(data, Random(n)) for n in range(50)}) > 25


# -- a judge has to be able to refuse ----------------------------------------------------------------------

READER = QueuedMessageReader(max_message_bytes=2**20)


def with_other_body(raw: bytes) -> Read:
    read = READER.decode(raw)
    return replace(read, body=read.body + b" ") if isinstance(read, Message) else read


def with_cut_bytes(raw: bytes) -> Read:
    read = READER.decode(raw)
    return read if isinstance(read, Message) else replace(read, raw=read.raw[:-1])


def without_a_reason(raw: bytes) -> Read:
    read = READER.decode(raw)
    return read if isinstance(read, Message) else replace(read, reason="")


def that_raises(raw: bytes) -> Read:
    read = READER.decode(raw)
    if isinstance(read, Unreadable):
        raise ValueError("no message")
    return read


def that_believes_everything(raw: bytes) -> Read:
    """Return a text that no store accepts, where a message is none."""
    read = READER.decode(raw)
    return read if isinstance(read, Message) else replace(read, reason="\ud800")


@pytest.mark.parametrize(
    "decode", [with_other_body, with_cut_bytes, without_a_reason, that_raises, that_believes_everything]
)
def test_a_reader_that_harms_messages_is_refused(decode: Callable[[bytes], Read], tmp_path: Path) -> None:
    layer = WheelQueue(tmp_path, decode=decode)
    with pytest.raises((Broken, ValueError)):
        layer.judge([layer.seeds[0], b"{"])


def test_a_command_that_stays_in_the_inbox_is_refused(tmp_path: Path) -> None:
    class Impatient(Commands):
        def judge(self, batch: Sequence[bytes]) -> Counter[str]:
            with self.rig() as rig:
                rig.store.put_command(0, *self.item(batch[0]))
                self._settle(rig, rounds=0)
            return Counter()

    layer = Impatient(tmp_path)
    with pytest.raises(Broken, match="inbox has 1 items"):
        layer.judge(layer.seeds)


def leaving_the_last(options: Any) -> Iterator[ForeignSchedule]:
    yield from list(READERS["redbeat"](options))[:-1]


def refusing_without_a_reason(options: Any) -> Iterator[ForeignSchedule]:
    for one in READERS["redbeat"](options):
        yield one if one.definition is not None else replace(one, reason="")


@pytest.mark.parametrize("read", [leaving_the_last, refusing_without_a_reason])
def test_a_reader_of_entries_that_harms_them_is_refused(
    read: Callable[[Any], Iterator[ForeignSchedule]], tmp_path: Path
) -> None:
    layer = RedBeat(tmp_path, read=read)
    with pytest.raises((Broken, ValueError)):
        layer.judge([b"{}"])


class Greedy(Layer):
    """Takes a megabyte of memory for each byte."""

    name = "greedy"
    seeds = [b"x" * 64]  # noqa: RUF012

    def look(self, data: bytes) -> None:
        if data == b"broken":
            raise RuntimeError

    def judge(self, batch: Sequence[bytes]) -> Counter[str]:
        held = bytearray(2**20 * sum(map(len, batch)))
        return Counter(taken=bool(held))


def test_a_batch_that_takes_too_much_memory_is_refused(tmp_path: Path) -> None:
    judge = judged(Greedy(tmp_path), 0)
    assert judge.failed == {"a batch took too much memory": 1}


def test_the_report_names_what_failed_and_its_first_message(tmp_path: Path) -> None:
    judge = Judge(Greedy(tmp_path))
    judge.take(b"broken")
    judge.take(b"broken")
    report = "\n".join(judge.report())
    assert "failures 2" in report
    assert "2 x RuntimeError in test_hostile.py" in report
    assert "b'broken'" in report
