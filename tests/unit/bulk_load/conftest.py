"""The apps of ``tests.unit.producer``, and an inbox in memory."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from celery_wheel.broker import shard_of
from celery_wheel.bulk_load import ScheduleResult, schedule_many
from celery_wheel.bulk_load.message_template import Sampler
from celery_wheel.store.model import MESSAGES, Message, NewItem
from tests.kit.packs import lines
from tests.unit.producer.conftest import add, app, broker, make_app
from tests.unit.producer.memory_broker import read_message

__all__ = ["add", "app", "broker", "make_app"]


def raw_messages(items: Sequence[NewItem]) -> list[bytes]:
    found: list[bytes] = []
    for kind, payload, *count in items:
        if kind == "message":
            found.append(payload)
        else:
            messages = lines(payload)
            assert (kind, count) == (MESSAGES, [len(messages)])
            found += [template.fill(values) for template, values in messages]
    return found


class Inbox:
    """Keeps the commits; ``fails_at`` is the number of the commit that raises ``error`` instead."""

    def __init__(self, shards: int = 1, fails_at: int = 0, error: Exception | None = None) -> None:
        self.shards = shards
        self.commits: list[dict[int, list[bytes]]] = []
        self.items: list[int] = []  #: the number of messages of each
        self._fails_at, self._error = fails_at, error

    def put_inboxes(self, items: Mapping[int, Sequence[NewItem]]) -> None:
        if len(self.commits) + 1 == self._fails_at and self._error:
            raise self._error
        self.items += [len(raw_messages([item])) for of_shard in items.values() for item in of_shard]
        self.commits.append({shard: raw_messages(of_shard) for shard, of_shard in items.items()})

    @property
    def raw(self) -> list[bytes]:
        return [raw for commit in self.commits for of_shard in commit.values() for raw in of_shard]

    def messages(self) -> list[Message]:
        found = [
            (shard, read_message(raw)) for commit in self.commits for shard, raws in commit.items() for raw in raws
        ]
        assert all(shard == shard_of(one.key, one.task_id, self.shards) for shard, one in found)
        return [one for _, one in found]


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


def load(app: Any, inbox: Inbox, rows: Any, **options: Any) -> ScheduleResult:
    done = schedule_many(app, inbox, rows, **options)
    assert done.rejected == []
    return done


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    send = Sampler.send
    monkeypatch.setattr(Sampler, "send", lambda self, call: calls.append(call) or send(self, call))
    return calls
