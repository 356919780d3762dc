"""Bulk scheduling: very many delayed tasks written into the store, as ``apply_async`` would send them.

::

    RowReader ──────────┐                                          ┌──► schedule_many   some hundred in an inbox item
    (schedule_many)     ├──► TaskCall ──► Renderer ──► RenderedMessage
    columns ────────────┘                                          └──► columns   some hundred in a pack of a bulk load
    (the Spark writer)

Bulk scheduling does not use the broker, which may be down. Memory has one group, the first KEPT reasons, and the ids if
``keep_ids`` is set (about 100 bytes each).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from celery_wheel.broker.transport import check_transport
from celery_wheel.bulk_load.renderer import RenderedMessage, Renderer
from celery_wheel.bulk_load.row import RowReader
from celery_wheel.conf import Conf
from celery_wheel.errors import SettingError
from celery_wheel.producer.destination import is_eligible
from celery_wheel.producer.interception import WheelAMQP
from celery_wheel.store.message_pack import pack
from celery_wheel.store.model import MESSAGES, NewItem
from celery_wheel.store.ports import FullStore

__all__ = ["RejectedRow", "ScheduleResult", "schedule_many"]


#: Messages in memory at a time, whatever their number.
GROUP_BYTES = 16 * 2**20
#: The most messages of one item of the inbox, and about the most bytes; a message of LARGE bytes is an item itself.
PACK_COUNT, PACK_BYTES, LARGE = 500, 2**20, 2**14
#: Reasons that ``ScheduleResult`` remembers.
KEPT = 1_000


class RejectedRow(NamedTuple):
    """A row that was not scheduled."""

    number: int  #: of the row, from 1
    reason: str


@dataclass(slots=True)
class ScheduleResult:
    """The state of a load at its last commit: the store has all of it for certain."""

    rows: int = 0  #: rows read, rejected ones included; to continue after a failure, skip this many
    count: int = 0  #: tasks scheduled
    rejected_count: int = 0
    rejected: list[RejectedRow] = field(default_factory=list)  #: the first KEPT of them
    ids: list[str] | None = None  #: task ids in the order of the rows, with ``keep_ids``


def schedule_many(
    app: Any,
    store: FullStore,
    rows: Iterable[Any],
    *,
    progress: Callable[[ScheduleResult], object] | None = None,
    rejected: Callable[[int, str], object] | None = None,
    group: int = 5_000,
    keep_ids: bool = False,
) -> ScheduleResult:
    """Schedule very many tasks; returns when all of them are durable in the store.

    Each row is a signature of one task with ``eta`` or ``countdown`` among its options, or (task, args, kwargs, eta
    [, queue, key, priority, expires, task_id, headers, group]) as a tuple, a NamedTuple or a dict (``bulk_load.row``).
    The message of a row is the one that ``apply_async`` would send. A row whose eta is past, or nearer than
    ``wheel_min_delay``, passes through the wheel too, and is dispatched at once.

    A wrong row is rejected and reported; the load continues. A group is committed as a whole: where this function
    raises (because the source of the rows, the store or a callback failed), the groups before are in the store. A note
    of the error has their number, and its attribute ``scheduled`` the ``ScheduleResult`` so far. No row of the current
    group is in the store, unless its commit failed: then either all are, or none.

    No row is recognised as loaded before: the same row once more is another message, and so is the same task id, as
    with ``apply_async``. To continue after a failure, skip ``error.scheduled.rows`` rows.

    A load omits, for each row, ``on_task_call`` of the result backend (an AsyncResult made of the id works), the
    warning about a past ``expires``, and a parent's trail. Signals of publishing and task-sent events are sent for each
    row if they have receivers, before its group is committed; Celery's own code then makes the messages, at about the
    rate of ``apply_async`` to a broker that answers at once. ``celery_wheel.bulk_load.renderer`` lists other reasons.

    Args:
        rows: read one by one, so a generator of millions is as good as a list.
        progress: called after each commit.
        rejected: called for each rejected row with its number, from 1, and the reason.
        group: rows in a commit.
        keep_ids: whether the result has the task ids.

    Raises SettingError where the wheel cannot accept tasks, StoreError, OperationalError of a broker for task-sent
    events, and the errors of the iterable itself.
    """
    _check(app, group)
    renderer = Renderer(app, store.shards, Conf(app).max_message_bytes)
    done = ScheduleResult(ids=[] if keep_ids else None)
    load = _InboxLoad(store, RowReader(app), renderer, progress, rejected, group, done)
    try:
        load.run(rows)
    except BaseException as error:
        error.add_note(load.note())
        error.scheduled = done  # type: ignore[attr-defined]  # errors of any class
        raise
    finally:
        renderer.close()
    return done


def _check(app: Any, group: int) -> None:
    if group < 1:
        raise ValueError(f"group must be at least 1, got {group}")
    if not isinstance(getattr(app, "amqp", None), WheelAMQP):
        raise SettingError(f"app must be a celery_wheel.Celery, or an argument of celery_wheel.install, got {app!r}")
    if not Conf(app).enabled:
        raise SettingError("wheel_enabled must be True for schedule_many, got False: no scheduler would read the rows")
    if app.conf.task_always_eager:
        raise SettingError("task_always_eager must be False for schedule_many, got True: no task would wait")
    check_transport(app)
    if not is_eligible(app, None, None):
        raise SettingError("broker_url must name one Redis server for schedule_many, got several: no task would wait")


@dataclass(slots=True)
class _InboxLoad:
    """One load, with the rows since its last commit."""

    store: FullStore
    reader: RowReader
    renderer: Renderer
    progress: Callable[[ScheduleResult], object] | None
    rejected: Callable[[int, str], object] | None
    group: int
    done: ScheduleResult
    messages: dict[int, list[RenderedMessage]] = field(default_factory=dict)  #: by shard
    ids: list[str] = field(default_factory=list)
    bad: list[RejectedRow] = field(default_factory=list)
    bytes: int = 0
    committing: bool = False

    def run(self, rows: Iterable[Any]) -> None:
        number = 0
        for number, row in enumerate(rows, 1):
            self.add(number, row)
            if number - self.done.rows >= self.group or self.bytes >= GROUP_BYTES:
                self.commit(number)
        if number > self.done.rows:
            self.commit(number)

    def add(self, number: int, row: Any) -> None:
        try:
            message = self.renderer.render(self.reader.read(row))
        except Exception as error:  # any fault of one row concerns this row alone
            if self.renderer.is_outage(error):
                raise
            self.bad.append(RejectedRow(number, str(error) or type(error).__name__))
            if self.rejected is not None:
                self.rejected(*self.bad[-1])
            return
        self.messages.setdefault(message.shard, []).append(message)
        self.ids.append(message.task_id)
        self.bytes += message.size

    def commit(self, number: int) -> None:
        if self.messages:
            items = {shard: list(_items(messages)) for shard, messages in self.messages.items()}
            self.committing = True
            self.store.put_inboxes(items)
            self.committing = False
        done = self.done
        done.rows = number
        done.count += len(self.ids)
        done.rejected_count += len(self.bad)
        done.rejected += self.bad[: KEPT - len(done.rejected)]
        if done.ids is not None:
            done.ids += self.ids
        self.messages, self.ids, self.bad, self.bytes = {}, [], [], 0
        if self.progress is not None:
            self.progress(done)

    def note(self) -> str:
        """Return a sentence about the content of the store, for an error."""
        text = f"schedule_many: {self.done.count:,} tasks, of the first {self.done.rows:,} rows, are in the store"
        if self.committing:
            return f"{text}; either all or none of the {len(self.ids):,} tasks after them are in the store too"
        return f"{text}, and none of the rows after them"


def _items(messages: Sequence[RenderedMessage]) -> Iterator[NewItem]:
    """Yield items of the inbox: packs of messages, and large messages, in their order."""
    pack_, weight = list[RenderedMessage](), 0
    for message in messages:
        is_large = message.size >= LARGE
        if pack_ and (is_large or len(pack_) == PACK_COUNT or weight + message.size > PACK_BYTES):
            yield _pack(pack_)
            pack_, weight = [], 0
        if is_large:
            yield "message", message.template.fill(message.values)
        else:
            pack_.append(message)
            weight += message.size
    if pack_:
        yield _pack(pack_)


def _pack(messages: Sequence[RenderedMessage]) -> NewItem:
    return MESSAGES, pack([(one.template, one.values) for one in messages]), len(messages)
