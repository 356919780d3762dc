"""The happenings of a year, from its seed: a list of instants, each with an act.

::

    every day          some tasks, of which some are cancelled later; the entries of Beat at noon and in the night
    outages            one to two a week, of 1 s to 3 days: broker, store, both, result backend, a full disk
    takeovers          every day: the holder is killed, stopped, or stands still past its lease
    clock steps        twice a month, forward or back, put right within a minute
    idle hours         at full resolution, twice a year
    measurements       of every container, once a month
"""

import math
from collections.abc import Callable
from typing import Any

from celery_wheel.scheduler import supervisor
from tests.year.beats import Year
from tests.year.growth import globals_of_the_product
from tests.year.judges import STOP_S
from tests.year.rabbit import Rabbit
from tests.year.servers import FULL, REFUSED, SILENT, UP, Server

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000

Event = tuple[int, int, Callable[[], None]]


class Script:
    def __init__(self, year: Year) -> None:
        self._year = year
        self._rng = year.rng
        self._start_ms = year.machine.now_ms
        self._found: list[Event] = []
        self._cut_ms = 0  #: the last outage's beginning

    def events(self) -> list[Event]:
        days = self._year.days
        for day in range(days):
            self._day(day)
        for noon_ms in self._year.judge.noons():
            if self._rng.random() < 0.3:
                self._short_cut(noon_ms)
        for day, seconds, name, mode in self._year.also:
            self._another(day, round(seconds * SECOND), name, mode)
        for n in range(max(1, days * 4 // 30)):
            self._outage(n)
        for _ in range(days * 24 // 365):
            self._clock_step(self._rng.uniform(0, days))
        for half in range(max(1, days // 180)):
            self._at(min(half * 180 + 20, days - 2) + 0.2, self._idle_hour)
        for month in range(1, days // self._year.month + 1):
            self._at(month * self._year.month - 0.3, self._measure)
        return sorted(one for one in self._found if one[0] < self._year.end_ms - 10 * MINUTE)

    def _at(self, day: float, act: Callable[[], None]) -> int:
        at_ms = self._start_ms + round(day * DAY)
        self._found.append((at_ms, len(self._found), act))
        return at_ms

    def _day(self, day: int) -> None:
        rng, year = self._rng, self._year
        at = day + rng.uniform(0.3, 0.4)
        self._at(at, self._some_tasks)
        if rng.random() < 0.4:
            self._at(at + 1e-4, self._cancel)
        if isinstance(year.broker, Rabbit):
            self._at(at + rng.choice((-5, 20, 24.9)) * SECOND / DAY, self._close_channels)
        if rng.random() < 0.4:
            self._at(at + 15 * SECOND / DAY, self._revoke)
        if rng.random() < 0.4:
            self._at(at - 200 * SECOND / DAY, lambda: year.edit(day % 60))
        self._at(at + 40 * SECOND / DAY, rng.choice((self._kill, self._stop, self._freeze, self._freeze)))
        if year.processes > 1:
            self._at(at + 100 * SECOND / DAY, rng.choice((self._kill_a_child, self._fail_to_fork)))

    def _some_tasks(self) -> None:
        year, rng = self._year, self._rng
        if year.broker_line.mode != UP:
            return  # a producer has Celery's own error
        now_ms = year.machine.now_ms
        idle_ms = DAY - (now_ms - self._start_ms + round(0.8 * DAY)) % DAY  # until 04:48, an idle time of each day
        for _ in range(rng.choice((3, 8))):
            # Some are due while the holder changes, some at the next outage, some at the idle time of a later day.
            later_ms = idle_ms, idle_ms + DAY, idle_ms + 19 * DAY
            in_ms = rng.choice((0, 25 * SECOND, 42 * SECOND, 44 * SECOND, *later_ms))
            year.send(in_ms)

    def _cancel(self) -> None:
        year = self._year
        if year.store_line.mode != UP:
            return
        found = year.judge.cancellable(year.machine.now_ms)
        for task_id in found[: self._rng.choice((1, 4))]:
            year.cancel(task_id)

    def _close_channels(self) -> None:
        assert isinstance(self._year.broker, Rabbit)
        self._year.broker.close_channels()
        self._year.judge.trouble("channels closed")
        self._year.later(0.001, lambda: self._year.judge.trouble_over("channels closed"))

    def _revoke(self) -> None:
        year = self._year
        found = year.judge.cancellable(year.machine.now_ms)
        if found and year.broker_line.mode == UP:
            year.revoke(found[0])

    def _kill(self) -> None:
        self._take_over("killed", lambda beat: (beat.kill(), self._year.later(5, beat.start)))

    def _stop(self) -> None:
        self._take_over("stopped", self._end)

    def _end(self, beat: Any) -> None:
        host = beat.host

        def start() -> None:
            self._year.judge.has_stopped(host)
            beat.start()

        beat.stop()
        self._year.later(STOP_S, start)

    def _kill_a_child(self) -> None:
        year = self._year
        beat = self._rng.choice(year.beats)
        if beat.children and not beat.host.is_frozen:
            year.judge.trouble("child killed")
            beat.children[0].kill()
            year.later(2, lambda: year.judge.trouble_over("child"))

    def _fail_to_fork(self) -> None:
        """No process can be started for a while: the second one ends at once."""
        year, for_s = self._year, self._rng.choice((10, 100))
        year.forks_until_s = year.machine.now_s + for_s
        self._kill_a_child()
        year.judge.trouble("no forks")
        year.later(for_s + supervisor.BACK_OFF_MOST_S, lambda: year.judge.trouble_over("no forks"))

    def _freeze(self) -> None:
        self._take_over("frozen", lambda beat: self._stand_still(beat, self._rng.choice((1, 6, 30))))

    def _stand_still(self, beat: Any, for_s: float) -> None:
        host = beat.host
        host.freeze()
        self._year.later(for_s, lambda: (host.thaw(), self._year.judge.shares_change()))

    def _take_over(self, what: str, act: Callable[[Any], object]) -> None:
        year = self._year
        holder = year.holder()
        if holder is None:
            return
        if holder.name == "a" and what != "frozen":
            # The first process lives as long as the year: a container may grow in it.
            what = "frozen"
            self._stand_still(holder, 6)
        else:
            act(holder)
        year.judge.counts[f"holder {what}"] += 1
        year.judge.trouble(f"holder {what}")
        year.later(0.001, lambda: year.judge.trouble_over(f"holder {what}"))

    def _outage(self, n: int) -> None:
        rng, year = self._rng, self._year
        most_ms = min(3 * DAY, year.days * DAY // 10)
        for_ms = round(math.exp(rng.uniform(math.log(SECOND), math.log(most_ms))))
        for_ms = max(for_ms, min(most_ms, 2 * HOUR)) if n % 12 == 3 else min(for_ms, most_ms)
        if n % 12 != 3 and rng.random() < 0.7:
            for_ms = min(for_ms, 55 * MINUTE)
        servers, mode = rng.choice(
            (
                ((year.broker_line,), REFUSED),
                ((year.broker_line,), SILENT),
                ((year.store_line,), REFUSED),
                ((year.store_line,), SILENT),
                ((year.store_line,), FULL),
                ((year.broker_line, year.store_line), REFUSED),
                ((year.backend_line,), REFUSED),
            )
        )
        day = rng.uniform(0.5, year.days - 1)
        if rng.random() < 0.5:
            day = int(day) + rng.uniform(0.3, 0.4)
        if year.backend_line in servers:
            self._at(day + SECOND / DAY, self._cancel)
        elif rng.random() < 0.7:  # the sources ask, and no answer comes
            self._at(day - 0.05 * SECOND / DAY, lambda: year.edit(n % 60))
        self._at(day, lambda: self._cut(servers, mode, for_ms))
        self._at(day + for_ms / DAY, lambda: self._mend(servers))

    def _another(self, day: float, for_ms: int, name: str, mode: str) -> None:
        year = self._year
        server = next(one for one in (year.broker_line, year.store_line, year.backend_line) if one.name == name)
        self._at(day - 0.05 * SECOND / DAY, lambda: year.edit(31))
        self._at(day, lambda: self._cut((server,), mode, for_ms))
        self._at(day + SECOND / DAY, self._cancel)
        self._at(day + for_ms / DAY, lambda: self._mend((server,)))

    def _short_cut(self, noon_ms: int) -> None:
        """Take the broker away for a moment while the run of noon ends."""
        day = (noon_ms - self._start_ms + 1_200) / DAY
        self._at(day, lambda: self._cut((self._year.broker_line,), REFUSED, 1_500) if self._year.is_up else None)
        self._at(day + 1_500 / DAY, lambda: self._mend((self._year.broker_line,)) if self._is_short else None)

    @property
    def _is_short(self) -> bool:
        return self._year.machine.now_ms - self._cut_ms < 2_000

    def _cut(self, servers: tuple[Server, ...], mode: str, for_ms: int) -> None:
        self._cut_ms = self._year.machine.now_ms
        for server in servers:
            self._year.cut(server, mode, for_ms)

    def _mend(self, servers: tuple[Server, ...]) -> None:
        for server in servers:
            self._year.mend(server)

    def _clock_step(self, day: float) -> None:
        ms = self._rng.choice((-HOUR, -3 * SECOND, -200, 200, 3 * SECOND, HOUR, 40 * DAY))
        name = self._rng.choice("ab")
        self._at(day, lambda: self._step(name, ms))

    def _step(self, name: str, ms: int) -> None:
        year = self._year
        beat = next(one for one in year.beats if one.name == name)
        beat.host.step_wall_ms(ms)
        year.judge.counts["clock stepped"] += 1
        host = beat.host
        year.later(50, lambda: host.step_wall_ms(-ms))

    def _idle_hour(self) -> None:
        self._year.deep_until_s = self._year.machine.now_s + self._year.deep_s
        self._year.judge.counts["idle hours"] += 1

    def _measure(self) -> None:
        year = self._year
        if year.is_up:
            year.judge.history()
        for one in year.running:
            found = year.growth.measure(one.host.name, getattr(one, "scheduler", one.service), globals_of_the_product())
            if found:
                raise year.violation(f"{one.host.name} has containers that grow: {found}")
