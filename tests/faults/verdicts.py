"""Answers of ``app.wheel`` while its schedulers are killed, each compared with the tasks that ran.

::

    python -m tests.faults.verdicts --store postgresql [--positive 5000] [--minutes 60] [--seed 7]

    four askers ► broker, inbox ──► scheduler a ─┐ store, shards      sqlite        Redis, 3 shards
        │ claims                    scheduler b ─┘  └──► worker       postgresql    RabbitMQ, 4 shards
        └────────────── compared by ``claims`` with ──────► notes

An asker sends tasks, and asks about them once half of them are due, more or less: a request and the dispatch of its
tasks then race. Meanwhile schedulers are killed, the second process of a scheduler (``wheel_processes``) is shot, and
PostgreSQL ends sessions, those of the askers as well. A limit is set before the tasks of its group are sent.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import psutil

from celery_wheel.broker import shard_of
from celery_wheel.errors import RequestInDoubt, StoreError, WheelUnavailable
from celery_wheel.values.format import to_datetime
from tests.faults.claims import DONE, IN_DOUBT, KINDS, REFUSED, Claim, Truth, compare
from tests.faults.in_flight import judge_flights
from tests.faults.killing import KilledSchedulers
from tests.faults.load import SCHEDULERS, SETTINGS
from tests.kit.patience import wait_until
from tests.kit.project import read_lines
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.rabbit import RabbitServer
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Broker

STORES = ("sqlite", "postgresql")

ASKERS = 4

#: Tasks of a request, those of a key, and those of a group with a limit.
TASKS, WATCHING, LIMITED = 50, 5, 4

#: Seconds that an asker waits for its answer.
TIMEOUT_S = 5.0

#: A moved task is due so much later than the last of its batch was.
LATER_MS = 1_500

#: The name of a unique call stays taken until the end: of two calls one runs, also if an outage is between them.
WINDOW_S = 86_400

MAX_RUNTIME_S = 3_600

#: Answers between two strikes, at most, and the seconds that are waited for them.
ANSWERS, ANSWERS_S = 150, 5.0

#: Sessions that PostgreSQL ends at a time.
SESSIONS = 4

_END = f"""
    SELECT pg_terminate_backend(pid) FROM
    (SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
     ORDER BY random() LIMIT {SESSIONS}) AS drawn"""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Asker(threading.Thread):
    """Sends tasks and asks about them, a kind after the other, until ``over``; an error ends it and is kept."""

    def __init__(self, app: Any, rng: random.Random, over: threading.Event, kinds: Sequence[str]) -> None:
        super().__init__()
        self.app = app
        self.rng = rng
        self.over = over
        self.kinds = kinds
        self.claims: list[Claim] = []
        self.limits: Counter[str] = Counter()
        self.limited: dict[str, list[int]] = {}  #: groups whose limit was set → the numbers of their tasks
        self.receipts: dict[str, tuple[list[str], int]] = {}  #: group → its tasks; how many the receipt has
        self.error: BaseException | None = None
        #: Seconds over which the tasks of a batch are due, by kind: as many as make half of the answers ``done``.
        self.lead_s = dict.fromkeys(KINDS, 6.0)

    @property
    def positives(self) -> int:
        return sum(one.positives for one in list(self.claims)) + self.limits[DONE]

    def run(self) -> None:
        try:
            while not self.over.is_set():
                kind = self.rng.choice(self.kinds)
                before = self.positives
                asked = getattr(self, f"_{kind}")()
                if kind in ("cancel", "move", "complete", "erase"):
                    in_time = (self.positives - before) * 2 >= asked
                    self.lead_s[kind] = min(60.0, max(0.3, self.lead_s[kind] * (0.8 if in_time else 1.3)))
        except BaseException as error:
            self.error = error

    # -- tasks ---------------------------------------------------------------------------------------

    def _new_name(self, kind: str) -> str:
        return f"{kind}:{self.rng.getrandbits(48):x}"

    def _send(self, kind: str, count: int = TASKS, **wheel: Any) -> list[str]:
        return [self._send_one(self.rng.uniform(0.05, self.lead_s[kind]), **wheel) for _ in range(count)]

    def _send_one(self, countdown_s: float, **wheel: Any) -> str:
        task_id = str(uuid.UUID(int=self.rng.getrandbits(128), version=4))
        due_ms = now_ms() + int(1_000 * countdown_s)
        how = {"wheel": wheel} if wheel else {}
        self.app.send_task("note", ("load", due_ms), countdown=countdown_s, task_id=task_id, **how)
        return task_id

    def _ask(
        self,
        ask: Callable[..., Mapping[str, Any]],
        names: Sequence[str],
        place: Callable[[str], str | None] = str,
        **how: Any,
    ) -> tuple[dict[str, Any], set[str]]:
        """Return the results that are certain, and the names for which the request was withdrawn.

        ``place`` returns the key by which the tasks of a name have a shard.
        """
        try:
            return dict(ask(list(names), timeout=TIMEOUT_S, **how)), set()
        except WheelUnavailable as error:
            silent = {one for one in names if one not in error.results and self._shard(place(one)) in error.shards}
            return error.results, silent
        except RequestInDoubt as error:
            return error.results, set()
        except StoreError:  # nothing was sent, or nobody knows
            return {}, set()

    def _shard(self, key: str | None) -> int | None:
        return None if key is None else shard_of(key, "", self.app.conf.wheel_shards)

    # -- kinds: each returns the number of tasks that it asked about -------------------------------

    def _cancel(self) -> int:
        ids = self._send("cancel")
        results, silent = self._ask(self.app.wheel.cancel, ids)
        for id_ in ids:
            said = str(results.get(id_, ""))
            idle = 0 if id_ in silent or said == "too_late" else None if not said else 1
            self.claims.append(Claim("cancel", (id_,), idle, int(said == "done")))
        return len(ids)

    def _move(self) -> int:
        ids = self._send("move")
        eta_ms = now_ms() + int(1_000 * self.lead_s["move"]) + LATER_MS
        results, silent = self._ask(self.app.wheel.reschedule, ids, eta=to_datetime(eta_ms))
        for id_ in ids:
            said = str(results.get(id_, ""))
            is_done = said == "done"
            idle = 0 if said or id_ in silent else None
            self.claims.append(Claim("move", (id_,), idle, int(is_done), eta_ms if is_done else 0))
        return len(ids)

    def _complete(self) -> int:
        watching = {}
        for _ in range(TASKS // WATCHING):
            key = self._new_name("watched")
            watching[key] = tuple(self._send("complete", WATCHING, watch=[key]))
        results, _ = self._ask(self.app.wheel.complete, list(watching), lambda _: None)
        for key, ids in watching.items():
            done = results[key].done if key in results else None
            self.claims.append(Claim("complete", ids, done, done or 0))
        return TASKS

    def _unique(self) -> int:
        pairs = []
        for _ in range(TASKS // 2):
            how = {"unique": self._new_name("unique"), "window": WINDOW_S}
            pairs.append([self._send_one(self.rng.uniform(0.05, 2), **how) for _ in range(2)])
        states = self._states([id_ for pair in pairs for id_ in pair])
        for pair in pairs:
            kept = [id_ for id_ in pair if states.get(id_) == "cancelled"]
            if len(kept) == 1 and len(states.keys() & set(pair)) == 2:
                self.claims += [Claim("unique", (id_,), int(id_ in kept), int(id_ not in kept)) for id_ in pair]
            elif all(id_ in states for id_ in pair):  # both or none were accepted
                self.claims.append(Claim("unique", tuple(pair), 1))
            else:
                self.claims.append(Claim("unique", tuple(pair), None))
        return TASKS

    def _states(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the states of calls in the store, as far as it has them before the time-out."""
        found, until_s = dict[str, str](), time.monotonic() + TIMEOUT_S
        while len(found) < len(ids) and time.monotonic() < until_s:
            for id_ in (one for one in ids if one not in found):
                with suppress(StoreError):
                    if (detail := self.app.wheel.get(id_)) is not None:
                        found[id_] = detail.state
            self.over.wait(0.2)
        return found

    def _erase(self) -> int:
        group = self._new_name("erased")
        ids = self._send("erase", group=group)

        def erase(names: Sequence[str], **how: Any) -> Mapping[str, Any]:
            return {name: self.app.wheel.erase(group=name, **how) for name in names}

        results, silent = self._ask(erase, [group])
        if (receipt := results.get(group)) is not None:
            pending = receipt.counts["pending"]
            self.claims.append(Claim("erase", tuple(ids), pending, pending))
            self.receipts[group] = ids, pending + receipt.counts["history"]
        else:
            self.claims.append(Claim("erase", tuple(ids), 0 if group in silent else None))
        return len(ids)

    def _limits(self) -> int:
        group = self._new_name("limited")
        try:
            self.app.wheel.limits.set(group, concurrency=1, max_runtime=MAX_RUNTIME_S, timeout=TIMEOUT_S)
        except (WheelUnavailable, StoreError) as error:
            self.limits[REFUSED if isinstance(error, WheelUnavailable) else IN_DOUBT] += 1
            return 1
        self.limits[DONE] += 1
        due_ms = now_ms() + 300
        numbers = self.limited[group] = [self.rng.getrandbits(50) for _ in range(LIMITED)]
        for number in numbers:
            kwargs = {"tag": [number, due_ms], "ms": 30}
            self.app.send_task("span", kwargs=kwargs, eta=to_datetime(due_ms), wheel={"group": group})
        return 1


class StackOfAskers(KilledSchedulers):
    """Two schedulers of two processes each, a worker, and askers; ``postgres`` is the store's server, if it has one."""

    def __init__(
        self,
        folder: Path,
        server: Broker,
        store: str,
        seed: int,
        postgres: PostgresServer | None = None,
        kinds: Sequence[str] = KINDS,
    ) -> None:
        settings = {**SETTINGS, "wheel_shards": 3 if postgres is None else 4, "wheel_processes": 2}
        if postgres is not None:  # without confirms a message counts as sent when it is written to a socket
            settings["broker_transport_options"] = {"confirm_publish": True}
        super().__init__(folder, server, store, random.Random(seed), **settings)
        self.postgres = postgres
        self.children_shot = self.sessions_ended = 0
        self.over = threading.Event()
        self.askers = [
            Asker(self.make_app(**self.settings), random.Random(seed * ASKERS + one), self.over, kinds)
            for one in range(ASKERS)
        ]

    def __enter__(self) -> Self:
        self.start_schedulers()
        self.celery("worker", "-c", "2", "-l", "WARNING", "--without-gossip", "--without-mingle")
        for one in self.askers:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.close()

    def stop(self) -> None:
        self.over.set()
        for one in self.askers:
            one.join()

    @property
    def positives(self) -> int:
        for one in self.askers:
            if one.error is not None:
                raise one.error
        return sum(one.positives for one in self.askers)

    # -- faults --------------------------------------------------------------------------------------

    def strike(self) -> None:
        """Shoot a second process, or end sessions, or neither, and kill a scheduler.

        A strike waits for some answers after the one before, or a busy machine would have no scheduler at all.
        """
        wanted = self.positives + self.rng.randrange(ANSWERS)
        with suppress(AssertionError):
            wait_until(lambda: self.positives >= wanted, "some answers say done", ANSWERS_S)
        if self.rng.random() < 0.5:
            self._shoot_a_child()
        if self.postgres is not None and self.rng.random() < 0.7:
            with suppress(OSError):
                self.sessions_ended += len(self.postgres.sql(_END))
        self.kill_after_a_pause()

    def _shoot_a_child(self) -> None:
        children = [child for name in SCHEDULERS for child in self[name].family()[1:] if _is_scheduler(child)]
        if children:
            with suppress(psutil.NoSuchProcess):
                self.rng.choice(children).kill()
                self.children_shot += 1

    # -- the end -------------------------------------------------------------------------------------

    def settle(self, seconds: float = 60) -> Truth:
        """End the asking, wait until nothing is pending and every task has run that will, and compare."""
        self.stop()
        _ = self.positives
        with suppress(AssertionError):  # the comparison finds what is missing
            wait_until(lambda: not self._read(lambda: sum(self.pending())), "nothing is pending", seconds)
            wait_until(lambda: not self._compare().broken(), "every task has run", seconds)
        last = self.app.send_task("note", ("last", 0), countdown=0.5).id
        wait_until(lambda: last in self.ran(), "a task behind all others has run", seconds)
        self["worker"].terminate()
        truth = self._compare(last)
        truth.left = self._left()
        return truth

    def _compare(self, last: str = "") -> Truth:
        claims = [claim for one in self.askers for claim in one.claims]
        truth = compare(claims, [note for note in self.runs() if note["tag"] != "last"])
        limits = {group: numbers for one in self.askers for group, numbers in one.limited.items()}
        lines = [line for line in read_lines(self.folder / "spans") if line[1] in limits]
        expected = [number for numbers in limits.values() for number in numbers]
        flights = judge_flights(lines, {"limited": 1}, 1_000 * MAX_RUNTIME_S, expected)
        truth.above = flights.broken()
        for one in self.askers:
            truth.said["limits"].update(one.limits)
        return truth

    def _read(self, read: Callable[[], int]) -> int:
        """Read the store, again where PostgreSQL has ended the session of a process that got no processor."""
        for _ in range(5):
            with suppress(StoreError):
                return read()
        return read()

    def _left(self) -> dict[str, int]:
        """Return the groups of receipts with more rows in the store than the receipt leaves to it."""
        receipts = {group: one for asker in self.askers for group, one in asker.receipts.items()}
        found = {
            group: sum(self._read(lambda id_=id_: bool(self.app.wheel.find(id_, with_bytes=False))) for id_ in ids)
            - (len(ids) - erased)
            for group, (ids, erased) in receipts.items()
        }
        return {group: rows for group, rows in found.items() if rows > 0}


def _is_scheduler(process: psutil.Process) -> bool:
    """Whether a child is a scheduler's process, and not the resource tracker of ``multiprocessing``."""
    try:
        return "spawn_main" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


@contextmanager
def stack_on(store: str, folder: Path, seed: int, kinds: Sequence[str] = KINDS) -> Iterator[StackOfAskers]:
    with ExitStack() as servers:
        if store == "sqlite":
            redis = servers.enter_context(RedisServer(folder / "redis"))
            stack = StackOfAskers(folder, redis, f"sqlite:///{folder}/wheel.sqlite3", seed, None, kinds)
        else:
            rabbit = servers.enter_context(RabbitServer(folder / "rabbitmq"))
            postgres = servers.enter_context(PostgresServer(fsync="on"))
            stack = StackOfAskers(folder, rabbit, postgres.url(), seed, postgres, kinds)
        yield servers.enter_context(stack)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.verdicts", description=__doc__)
    parser.add_argument("--store", choices=STORES, default=STORES[0])
    parser.add_argument("--positive", type=int, default=5_000, help="answers that say done")
    parser.add_argument("--minutes", type=float, default=60, help="the asking ends after so long")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="verdicts-") as folder,
        stack_on(options.store, Path(folder), options.seed, options.kinds) as stack,
    ):
        began = time.monotonic()
        while stack.positives < options.positive and time.monotonic() - began < 60 * options.minutes:
            stack.strike()
            print(f"\r{stack.kills} kills, {stack.positives} positive answers", end="", file=sys.stderr, flush=True)
        truth = stack.settle(300)
        print(
            f"\n{options.store}, seed {options.seed}: {stack.kills} kills of schedulers, {stack.kills_of_holders} of "
            f"holders, {stack.children_shot} of second processes, {stack.sessions_ended} sessions ended, in "
            f"{time.monotonic() - began:.0f} s\n{truth}"
        )
        if broken := truth.broken():
            print(broken)
        return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
