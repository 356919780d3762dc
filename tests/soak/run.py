"""One run of one pair: servers, load, faults and an outage, then the judge."""

import json
import random
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg
import redis

from tests.faults.instants import expected
from tests.kit.patience import patience, wait_until
from tests.kit.processes import ROOT
from tests.soak import gauges
from tests.soak.consumer import now_ms
from tests.soak.judge import Verdict, instants, judge, missing
from tests.soak.ledger import Ledger
from tests.soak.load import OLD, YOUNG, Load
from tests.soak.pairs import PAIRS, note_processes, pair_of
from tests.soak.picture import draw

#: Part of the run after which the outage begins.
OUTAGE_AFTER = 0.2

#: The longest suspension, hang or lock, in seconds; the seed draws a part of it.
LONGEST_S = 20.0

#: Seconds of a quiet machine in which everything due has to arrive after the load has ended.
SETTLE_S = 300.0


@dataclass(frozen=True)
class Plan:
    """How long and how hard a run is."""

    seconds: float
    outage_s: float
    rate: int = 300
    seed: int = 7
    fault_every_s: float = 60.0
    outage_of: str = ""  #: broker or store; by turns unless it is given
    longest_s: float = LONGEST_S


class Run:
    def __init__(self, pair: str, kept: Path, plan: Plan) -> None:
        kept.mkdir(parents=True, exist_ok=True)
        self.pair, self.kept, self.plan = pair, kept, plan
        self.ledger = Ledger(kept / "ledger.sqlite3")
        self.number = 1 + self.ledger.one("SELECT coalesce(max(run), 0) FROM runs")
        self.rng = random.Random(f"{plan.seed} {self.number}")
        self.outage_of = plan.outage_of or PAIRS[pair][(self.number - 1) % 2]

    def __call__(self) -> Verdict:
        try:
            with pair_of(self.pair, self.kept) as parts:
                self._servers = {part: one.server for part, one in parts.items() if hasattr(one, "server")}
                return self._on(parts)
        finally:
            self.ledger.close()

    def _on(self, parts: dict[str, Any]) -> Verdict:
        row = (self.number, now_ms(), self.plan.seed, _code(), self.outage_of)
        self.ledger.write("INSERT INTO runs (run, began_ms, seed, code, outage_of) VALUES (?, ?, ?, ?, ?)", [row])
        folder = self.kept / "runs" / str(self.number)
        rng = random.Random(f"{self.plan.seed} {self.number} load")  # its threads draw in any order
        load = self.load = Load(folder, self.kept, parts, self.ledger, self.number, self.plan.rate, rng)
        watcher = threading.Thread(target=gauges.watch, args=(load, parts, self.kept))
        try:
            load.begin()
            watcher.start()
            asked = load.create_schedules()
            self._set("asked_ms = ?, answered_ms = ?", *asked)
            self._trouble(parts)
            ended_ms = self._settle(asked[1])
        finally:
            load.end()
            if watcher.ident is not None:
                watcher.join(patience(60))
        assert not load.failures, load.failures[0]
        self._set("ended_ms = ?", ended_ms)
        verdict = judge(self.ledger, self.number, load.plans, exactly_once=self.pair.endswith("redis"))
        self._set("verdict = ?", json.dumps(verdict.figures()))
        draw(self.ledger, self.kept / "soak.svg", self.pair)
        return verdict

    def _set(self, columns: str, *values: Any) -> None:
        self.ledger.write(f"UPDATE runs SET {columns} WHERE run = ?", [(*values, self.number)])

    # -- trouble -----------------------------------------------------------------------------------------

    def _trouble(self, parts: dict[str, Any]) -> None:
        """Let the load run for the time of the plan, under its faults and its outage."""
        plan, stop, began_s = self.plan, self.load.stop, time.monotonic()
        outage_s, fault_s = plan.seconds * OUTAGE_AFTER, self._next_s(0)
        away: Any = None
        is_over = False
        try:
            while (passed_s := time.monotonic() - began_s) < plan.seconds and not stop.is_set():
                self.load.supervise()
                if away is None and not is_over and passed_s > outage_s:
                    away, away_ms = parts[self.outage_of], now_ms()
                    away.go()
                elif away is not None and passed_s > outage_s + plan.outage_s:
                    away, is_over = self._come(away, away_ms), True
                elif passed_s > fault_s:
                    self._fault(parts, "" if away is None else self.outage_of)
                    fault_s = self._next_s(time.monotonic() - began_s)
                stop.wait(0.5)
        finally:
            if away is not None:
                self._come(away, away_ms)

    def _next_s(self, passed_s: float) -> float:
        return passed_s + self.plan.fault_every_s * self.rng.uniform(0.5, 1.5)

    def _come(self, away: Any, away_ms: int) -> None:
        away.come()
        note_processes(self.kept, self._servers)
        self._note(f"outage of the {self.outage_of}", away_ms)

    def _note(self, kind: str, from_ms: int, note: str = "") -> None:
        self.ledger.write("INSERT INTO faults VALUES (?, ?, ?, ?, ?)", [(self.number, kind, from_ms, now_ms(), note)])

    def _fault(self, parts: Mapping[str, Any], away: str) -> None:
        found: dict[str, Callable[[], Any]] = {**self._of_schedulers()}
        for name, part in parts.items():
            if name != away:
                found |= part.faults(self._pause)
        kind = self.rng.choice(sorted(found))
        began_ms, note = now_ms(), ""
        try:
            found[kind]()
            note_processes(self.kept, self._servers)
        except (AssertionError, OSError, psutil.Error, psycopg.Error, redis.RedisError, sqlite3.Error) as error:
            kind, note = f"{kind}: not carried out", f"{error!r:.500}"
        self._note(kind, began_ms, note)

    def _of_schedulers(self) -> dict[str, Callable[[], Any]]:
        def suspended(name: str) -> None:
            self.load[name].suspend()
            try:
                self._pause(1)
            finally:
                self.load[name].resume()

        return {
            "the young scheduler is killed": lambda: self._again(self.load[YOUNG].kill),
            "the young scheduler is ended": lambda: self._again(self.load[YOUNG].terminate),
            "the young scheduler is suspended": lambda: suspended(YOUNG),
            "the old scheduler is suspended": lambda: suspended(OLD),
        }

    def _again(self, end: Callable[[], object]) -> None:
        end()
        self.load.beat(YOUNG)

    def _pause(self, part: float) -> None:
        """Wait for a part of the longest time, which the seed decides."""
        self.load.stop.wait(self.plan.longest_s * part * self.rng.uniform(0.2, 1))

    # -- the end -----------------------------------------------------------------------------------------

    def _settle(self, answered_ms: int) -> int:
        """End the load, and wait until everything due has arrived; returns the instant up to which all is due."""
        load, ended_ms = self.load, now_ms()
        load.stop_sending.set()
        sure = expected(load.plans, answered_ms, ended_ms)
        first = self.ledger.one(
            "SELECT coalesce(min(number), 0) FROM sends WHERE due_ms >= (SELECT coalesce(max(ended_ms), 0) FROM runs)"
        )

        def has_arrived() -> bool:
            load.supervise()
            return bool(load.failures) or not (
                missing(self.ledger, ended_ms, first) or sure - instants(self.ledger, self.number)
            )

        with suppress(AssertionError):  # the judge counts what is missing
            wait_until(has_arrived, "everything due has arrived", SETTLE_S, every_s=2)
        load.delete_schedules()
        return ended_ms


def _code() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
