"""``schedule_many``: rows into the store's inbox, a group a transaction.

::

    rows, one after the other ──► message, or a reason why there is none ──► rejected(number, reason)
                                     └─ ``group`` rows, or GROUP_BYTES ──► one commit, fsync ──► progress(so far)

The scheduler takes the inbox in beside the wheel queue, 5,000 rows at a time, so neither waits for the other.

In memory at a time: one group, the first KEPT reasons, and the ids where they were asked for (about 100 bytes each).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from celery_wheel.broker import check_transport
from celery_wheel.bulk.renderer import Renderer
from celery_wheel.bulk.row import Reader
from celery_wheel.conf import Conf
from celery_wheel.errors import SettingError
from celery_wheel.interception import WheelAMQP
from celery_wheel.reach import reaches

#: Messages in memory at a time, whatever their number.
GROUP_BYTES = 16 * 2**20
#: Reasons that ``Scheduled`` remembers.
KEPT = 1_000


class Inbox(Protocol):
    """What is used of a store."""

    @property
    def shards(self) -> int: ...

    def put_inboxes(self, items: Mapping[int, Sequence[tuple[str, bytes]]]) -> None: ...


class Rejected(NamedTuple):
    number: int  #: of the row, from 1
    reason: str


@dataclass(slots=True)
class Scheduled:
    """How far a load is, as of its last commit. All of it is in the store for certain."""

    rows: int = 0  #: read, whether they were good or not; to go on after a failure, leave out so many
    count: int = 0  #: tasks scheduled
    rejected_count: int = 0
    rejected: list[Rejected] = field(default_factory=list)  #: the first KEPT of them
    ids: list[str] | None = None  #: task ids in the order of the rows, if they were asked for


def schedule_many(
    app: Any,
    store: Inbox,
    rows: Iterable[Any],
    *,
    progress: Callable[[Scheduled], object] | None = None,
    rejected: Callable[[int, str], object] | None = None,
    group: int = 5_000,
    keep_ids: bool = False,
) -> Scheduled:
    """Schedule very many tasks; returns when all of them are durable in the store.

    Each row is a signature of one task with ``eta`` or ``countdown`` among its options, or (task, args, kwargs, eta
    [, queue, key, priority, expires, task_id, headers]) as a tuple, a NamedTuple or a dict: ``celery_wheel.bulk.row``.
    What waits for a row is what ``apply_async`` would have left for it. A row whose eta is past, or nearer than
    ``wheel_min_delay``, waits in the wheel too, and leaves as soon as it may.

    A row that is wrong is left out and reported; the others are kept. A group is committed as a whole: where this
    raises (the source of the rows, the store or a callback failed), the groups before are in the store. The error
    tells in a note how many that are, and has the ``Scheduled`` so far in its attribute ``scheduled``. Of the group
    under way nothing is in the store, but for a failing commit: then all of it is, or nothing.

    Nothing is recognised as done before: a row that is given again is another message, and a task id that is given
    twice is two messages, as with ``apply_async``. To repeat after a failure, leave out ``error.scheduled.rows`` rows.

    Not done for each row: ``on_task_call`` of the result backend (an AsyncResult made of the id works), the warning
    about an ``expires`` that is past, a parent's trail. Signals of publishing and task-sent events are sent for each
    row if anybody listens, before its group is committed; the load then goes by Celery's own code, at about the rate
    of ``apply_async`` to a broker that answers at once. ``celery_wheel.bulk.renderer`` lists what else does.

    Args:
        rows: read one by one, so a generator of millions is as good as a list.
        progress: called after each commit.
        rejected: called with the number of the row, from 1, and the reason, for each row that is left out.
        group: rows a commit.
        keep_ids: whether the result has the task ids.

    Raises SettingError where nothing may wait in the wheel, StoreError, OperationalError of a broker that task-sent
    events go to, and what the iterable itself raises.
    """
    _check(app, group)
    renderer = Renderer(app, store.shards, Conf(app).max_message_bytes)
    load = _Load(store, Reader(app), renderer, progress, rejected, group, keep_ids)
    try:
        load.run(rows)
    except BaseException as error:
        error.add_note(load.certainly())
        error.scheduled = load.done  # type: ignore[attr-defined]  # of whatever class it is
        raise
    finally:
        renderer.close()
    return load.done


def _check(app: Any, group: int) -> None:
    if group < 1:
        raise ValueError(f"group must be at least 1, got {group}")
    if not isinstance(getattr(app, "amqp", None), WheelAMQP):
        raise SettingError(f"app must be a celery_wheel.Celery, or be given to celery_wheel.install, got {app!r}")
    if not Conf(app).enabled:
        raise SettingError("wheel_enabled must be True for schedule_many, got False: nothing would take the rows in")
    if app.conf.task_always_eager:
        raise SettingError("task_always_eager must be False for schedule_many, got True: nothing would wait")
    check_transport(app)
    if not reaches(app, None, None):
        raise SettingError("broker_url must name one Redis server for schedule_many, got several: nothing would wait")


class _Load:
    """One run: what is collected until the next commit."""

    def __init__(
        self,
        store: Inbox,
        reader: Reader,
        renderer: Renderer,
        progress: Callable[[Scheduled], object] | None,
        rejected: Callable[[int, str], object] | None,
        group: int,
        keep_ids: bool,
    ) -> None:
        self.done = Scheduled(ids=[] if keep_ids else None)
        self._store = store
        self._read = reader.read
        self._renderer = renderer
        self._progress = progress
        self._rejected = rejected
        self._group = group
        self._committing = False
        self._begin()

    def _begin(self) -> None:
        self._items: dict[int, list[tuple[str, bytes]]] = {}
        self._ids: list[str] = []
        self._bad: list[Rejected] = []
        self._bytes = 0

    def run(self, rows: Iterable[Any]) -> None:
        number = 0
        for number, row in enumerate(rows, 1):
            self._add(number, row)
            if number - self.done.rows >= self._group or self._bytes >= GROUP_BYTES:
                self._commit(number)
        if number > self.done.rows:
            self._commit(number)

    def _add(self, number: int, row: Any) -> None:
        try:
            line = self._renderer.render(self._read(row))
        except Exception as error:  # whatever is wrong with one row concerns this row alone
            if self._renderer.is_outage(error):
                raise
            self._bad.append(Rejected(number, str(error) or type(error).__name__))
            if self._rejected is not None:
                self._rejected(*self._bad[-1])
            return
        message = line.form.fill(line.values)
        self._items.setdefault(line.shard, []).append(("message", message))
        self._ids.append(line.task_id)
        self._bytes += len(message)

    def _commit(self, number: int) -> None:
        if self._items:
            self._committing = True
            self._store.put_inboxes(self._items)
            self._committing = False
        done = self.done
        done.rows = number
        done.count += len(self._ids)
        done.rejected_count += len(self._bad)
        done.rejected += self._bad[: KEPT - len(done.rejected)]
        if done.ids is not None:
            done.ids += self._ids
        self._begin()
        if self._progress is not None:
            self._progress(done)

    def certainly(self) -> str:
        """What is in the store, in words."""
        text = f"schedule_many: {self.done.count:,} tasks, of the first {self.done.rows:,} rows, are in the store"
        if self._committing:
            return f"{text}; so are, perhaps, the {len(self._ids):,} tasks after them, either all or none"
        return f"{text}, and nothing of the rows after them"
