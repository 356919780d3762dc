"""Calls that become fewer runs in a simulated world: debounces with a bound, throttles and batches.

::

    dress    in some worlds a message gets a key of one of four kinds; all messages of a key have its rule
    send     the bound becomes an instant; the times are kept as they were sent, since admission changes them
    came     an accepted row is judged with the other rows of its key, at the step that committed it
               index     debounce: due at its own time, or at the bound of all that it replaced, one after the other
               refresh   throttle, leading edge: no other row of the key has begun a window that goes on
               sync      throttle, both edges: no other one waits for the end of the window, nor is pending where the
                         row begins one; rows of the key are a window apart
               insert    batch: due no earlier than it was called for, no later than it was to wait for others; a batch
                         that is full waits no longer
    pushed   no call of a batch is early

Rows that users moved, requeued or replayed are left out: a move takes the bound, the window or the batch along. Where
clocks step, the instants of two commits say nothing about the time between them.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection

from celery_wheel.store.model import FOLLOW, REPLACE, STOPPED, Message, Row
from tests.simulation.model_history import ShardData, StoredRow
from tests.simulation.recalling import Recalling

BOUNDED, LEADING, BOTH, BATCH = KINDS = "index", "refresh", "sync", "insert"


class Collapsing:
    def __init__(
        self, rng: random.Random, chance: float, dense: bool, clock_steps: bool, violation: Callable[[str], Exception]
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.used = rng.random() < chance  #: whether messages of this world have these keys
        self.window_ms, self.wait_ms, self.size = (200, 200, rng.choice((1, 2, 2, 3))) if dense else (2_000, 600, 2)
        self._rng = rng
        self._clock_steps = clock_steps
        self._violation = violation
        self._sent: dict[str, tuple[int, int | None]] = {}  #: by task: its eta, and its bound
        #: By row: the bound of all that it replaced. A task whose row is forgotten may be sent again.
        self._bounds: dict[int, int | None] = {}
        self._inherit: set[int] = set()  #: rows that replaced a moved one, and so are due at its time

    def dress(self, message: Message) -> None:
        rng = self._rng
        if not self.used or message.unique is not None or rng.random() < 0.3:
            return
        message.unique = kind = rng.choices(KINDS, (3, 2, 3, 5))[0]
        if kind == BOUNDED:
            message.on_conflict, message.latest_ms = REPLACE, rng.choice((None, 5, 30, 100, 3_000))
        elif kind == BATCH:
            message.batch = self.size
        else:
            message.on_conflict, message.window_ms = (FOLLOW if kind == BOTH else "keep"), self.window_ms

    def send(self, message: Message) -> None:
        """Note a message whose eta is an instant by now; its bound is still a duration."""
        if message.unique == BATCH:
            message.latest_ms = message.eta_ms + self.wait_ms
        elif message.latest_ms is not None:
            message.latest_ms += message.created_ms
            message.eta_ms = min(message.eta_ms, message.latest_ms)
        self._sent[message.task_id] = message.eta_ms, message.latest_ms

    def came(self, data: ShardData, row_id: int, claims: Collection[int]) -> bool:
        """Judge an accepted row; ``claims``: ids of rows that claim keys. False: its key may have several tasks."""
        stored = data.rows[row_id]
        message, key = stored.message, key_of(stored)
        if key not in KINDS or not isinstance(message, Message):
            return True
        self.counts[f"accepted: {key}"] += 1
        aside = self._inherit | _moved(data)
        others = [one for id_, one in data.rows.items() if id_ != row_id and id_ not in aside and key_of(one) == key]
        others = [one for one in others if one.row.lane != STOPPED]
        pending = [one for one in others if one.row.id in claims]
        if key == BOUNDED:
            self._judge_bound(data, message, stored.row)
        elif key == LEADING:
            self._judge_window(stored, others)
        elif key == BOTH:
            self._judge_edges(data, message, stored, others, pending)
        else:
            self._judge_batch(message, stored, others, pending)
        return key in (BOUNDED, LEADING)

    def is_in_window(self, data: ShardData, row_id: int) -> bool:
        """Whether a row that was stopped came, or was sent, within the window of another one."""
        stored, window_ms = data.rows[row_id], self.window_ms
        at_ms, key, message = stored.accepted_ms, key_of(stored), stored.message
        assert isinstance(message, Message)
        others = [one.row.eta_ms for id_, one in data.rows.items() if id_ != row_id and key_of(one) == key]
        sent_ms = message.created_ms
        return self._clock_steps or any(
            at_ms < eta_ms + window_ms or eta_ms <= sent_ms < eta_ms + window_ms for eta_ms in others
        )

    def was_full(self, stored: StoredRow) -> bool:
        """Whether a call of a batch is due since its batch is full, so at another time than it was accepted for."""
        return key_of(stored) == BATCH and not _waits(stored)

    def pushed(self, data: ShardData, row: Row, now_ms: int) -> None:
        stored = data.rows[row.id]
        if key_of(stored) != BATCH or self._clock_steps or row.id in _moved(data):
            return
        assert isinstance(stored.message, Message)
        if now_ms < self._sent[stored.message.task_id][0]:
            raise self._violation(f"{stored.message.task_id} was pushed with its batch, before its own time")

    def _judge_bound(self, data: ShardData, message: Message, row: Row) -> None:
        eta_ms, _ = self._sent[message.task_id]
        bound_ms = self._bound_of(data, row.id, message.task_id)
        if row.eta_ms != (eta_ms if bound_ms is None else min(eta_ms, bound_ms)):
            raise self._violation(f"{message.task_id} is due at {row.eta_ms}, sent for {eta_ms}, bound {bound_ms}")
        self.counts["earlier by a bound"] += row.eta_ms < eta_ms

    def _bound_of(self, data: ShardData, row_id: int, task_id: str) -> int | None:
        if row_id not in self._bounds:
            before = _replaced(data, task_id).items()
            bounds = [self._sent[task_id][1], *(self._bound_of(data, *one) for one in before)]
            self._bounds[row_id] = min((one for one in bounds if one is not None), default=None)
        return self._bounds[row_id]

    def _judge_window(self, stored: StoredRow, others: Collection[StoredRow]) -> None:
        before = [one.row for one in others if one.row.id < stored.row.id]
        on = [one.id for one in before if one.eta_ms + self.window_ms > stored.accepted_ms]
        if on and not self._clock_steps:
            raise self._violation(f"row {stored.row.id} was accepted in the window of rows {on}")
        self.counts["accepted after a window"] += bool(before)

    def _judge_edges(
        self,
        data: ShardData,
        message: Message,
        stored: StoredRow,
        others: Collection[StoredRow],
        pending: Collection[StoredRow],
    ) -> None:
        row, at_once = stored.row, message.latest_ms is None
        before = [one for one in pending if one.row.id < row.id and (at_once or _follows(one))]
        if before:
            raise self._violation(f"{message.task_id} and rows {[one.row.id for one in before]} are pending")
        if replaced := _replaced(data, message.task_id):
            if self._inherit.union(_moved(data)).isdisjoint(replaced):
                # Several: one was on its way to a broker that did not answer, so the next came after it.
                expected = min(data.rows[id_].row.eta_ms for id_ in replaced)
                if expected != row.eta_ms:
                    raise self._violation(f"{message.task_id} is due at {row.eta_ms}, and the one before at {expected}")
            else:
                self._inherit.add(row.id)
            return
        # A call that comes later than it is due, such as after an outage, may be in a window that is over by now.
        judged = others if row.eta_ms >= stored.accepted_ms and not self._clock_steps else pending
        earlier = [one.row for one in judged if one.row.id < row.id]
        if near := [one.id for one in earlier if row.eta_ms < one.eta_ms + self.window_ms]:
            raise self._violation(f"{message.task_id} is due within the window of rows {near}")
        self.counts["follows"] += row.eta_ms > self._sent[message.task_id][0]

    def _judge_batch(
        self, message: Message, stored: StoredRow, others: Collection[StoredRow], pending: Collection[StoredRow]
    ) -> None:
        row, (eta_ms, latest_ms) = stored.row, self._sent[message.task_id]
        assert latest_ms is not None
        if not eta_ms <= row.eta_ms <= max(latest_ms, stored.accepted_ms):
            raise self._violation(f"{message.task_id} of a batch is due at {row.eta_ms}, sent for {eta_ms}")
        waits = message.latest_ms == row.eta_ms > stored.accepted_ms
        with_it = [one.row.id for one in pending if waits and one.row.eta_ms == row.eta_ms and _waits(one)]
        # One whose call may run last of all when the batch is due anyway waits until then.
        calls = [one.message for one in others if one.row.id in with_it and isinstance(one.message, Message)]
        last_ms = max(self._sent[call.task_id][0] for call in (message, *calls))
        if waits and len(with_it) >= self.size - 1 and last_ms < row.eta_ms:
            raise self._violation(f"{message.task_id} and rows {with_it} are a full batch, and wait")
        is_full = message.latest_ms is None
        if is_full and sum(one.row.eta_ms == row.eta_ms and not _waits(one) for one in others) < self.size - 1:
            raise self._violation(f"{message.task_id} made its batch full, and the others wait")
        self.counts["joined"] += bool(with_it)
        self.counts["full"] += is_full


def key_of(stored: StoredRow) -> str | None:
    return stored.message.unique if isinstance(stored.message, Message) else None


def _follows(stored: StoredRow) -> bool:
    return isinstance(stored.message, Message) and stored.message.latest_ms is not None


def _waits(stored: StoredRow) -> bool:
    """Whether a call still waits for others: a batch that is full has another eta than its bound."""
    return isinstance(stored.message, Message) and stored.message.latest_ms == stored.row.eta_ms


def _replaced(data: ShardData, task_id: str) -> dict[int, str]:
    """Return row → task id of the rows that a task replaced."""
    found = [one.timer_id for one in data.outcomes if one.reason.startswith(f"replaced by task {task_id} ")]
    stored = {id_: data.rows[id_].message for id_ in found}
    return {id_: one.task_id for id_, one in stored.items() if isinstance(one, Message)}


def _moved(data: ShardData) -> set[int]:
    ever = (*data.outcomes, *data.forgotten_outcomes)
    return {one.timer_id for one in ever if one.kind == "moved"} | {*Recalling.recalled(data)}
