"""A machine in virtual time: the product's own threads, locks and clocks, in one thread of this process.

::

    Machine      now ─► ready: threads that can go on, one after the other ─► none left: the next instant of the heap
      └ Host     one process of the machine: its threads, and the step of its wall clock
                     freeze, thaw      SIGSTOP and SIGCONT: its threads stand still, its clocks do not
                     kill              kill -9: no thread of it runs another line that a server could see

    installed()  gives every module of the product a ``time`` and a ``threading`` that belong to the machine

A virtual thread is a greenlet: it runs until it waits (for a lock, a condition, an event, a time), and then another one
goes on. So an hour without work takes no time, and the product is tried as it is: its pool with leader and spares, its
conditions, its loops. A name that a module has imported from ``time`` or ``threading`` would be the real one: a test
sees to it that there is none.

Non-promises: two threads never run between the same two lines, so it finds no race of single lines, but every wait that
nobody ends. Computing takes no time, but SWITCH_NS for each switch and READ_NS for each reading of a clock, so that a
loop that never waits is seen: more than SPIN of both within a second of virtual time are a ``Spin``.
"""

from __future__ import annotations

import heapq
import itertools
import math
import sys
import threading as real_threading
import time as real_time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

SWITCH_NS = 2_000
READ_NS = 100
SPIN = 50_000

_NS = 1_000_000_000

#: A host that was killed lets a thread wait so often before it is left where it is.
LAST_WAITS = 50


class Spin(AssertionError):
    """A thread runs again and again without waiting."""


class Host:
    """A process of the machine."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine = machine
        self.name = name
        self.wall_step_ns = 0
        self.is_dead = self.is_frozen = False
        self.threads: set[greenlet] = set()
        self.last_waits = 0
        self.aside: list[tuple[greenlet, bool]] = []  #: threads that could go on while it is frozen

    def step_wall_ms(self, ms: int) -> None:
        self.wall_step_ns += ms * 1_000_000

    def freeze(self) -> None:
        self.is_frozen = True

    def thaw(self) -> None:
        self.is_frozen = False
        self.machine.ready.extend(self.aside)
        self.aside.clear()

    def kill(self) -> None:
        self.is_dead = True
        self.aside.clear()
        for thread in list(self.threads):
            if thread and not thread.dead and thread is not getcurrent():
                self.machine.end(thread)
        self.threads.clear()


class _Waiter:
    __slots__ = ("is_over", "thread")

    def __init__(self, thread: greenlet) -> None:
        self.thread = thread
        self.is_over = False


class Machine:
    def __init__(self, start_ms: int) -> None:
        self.epoch_ns = start_ms * 1_000_000  #: the true wall clock at the machine's start
        self.now_ns = 0
        self.ready: deque[tuple[greenlet, bool]] = deque()
        self.instants: list[tuple[int, int, _Waiter]] = []
        self._serial = itertools.count()
        self._hub = getcurrent()
        self._until_ns = 0
        self._handed: tuple[greenlet, bool] | None = None  #: the next thread, which the hub is to start
        self.outside = self.host = Host(self, "outside")  #: ``host``: of the thread that runs
        self._host_of: dict[greenlet, Host] = {}
        self.failures: list[BaseException] = []  #: errors that ended a thread
        self._steps, self._stepped_ns = 0, 0  #: steps since an instant
        self.time: Any = VirtualTime(self)
        self.threading: Any = VirtualThreading(self)

    # -- time --------------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return (self.epoch_ns + self.now_ns) // 1_000_000

    @property
    def now_s(self) -> float:
        return self.now_ns / _NS

    def leap(self, ms: int) -> None:
        """Move the calendar, and no monotonic clock: time in which nobody would have done anything new."""
        self.epoch_ns += ms * 1_000_000

    # -- threads -----------------------------------------------------------------------------------------

    def new_host(self, name: str) -> Host:
        return Host(self, name)

    def spawn(self, run: Callable[[], object], host: Host | None = None) -> greenlet:
        host = host or self.host
        thread = greenlet(lambda *_: self._body(run), self._hub)
        self._host_of[thread] = host
        host.threads.add(thread)
        self.ready.append((thread, True))
        return thread

    def _body(self, run: Callable[[], object]) -> None:
        thread = getcurrent()
        try:
            run()
        except GreenletExit:
            pass
        except BaseException as error:  # a thread that nobody joins; the judge reads them
            if not self._host_of[thread].is_dead:
                self.failures.append(error)
        finally:
            self._host_of.pop(thread).threads.discard(thread)

    def end(self, thread: greenlet) -> None:
        before, self.host = self.host, self._host_of[thread]
        self.host.last_waits = 0
        thread.parent = getcurrent()
        thread.throw(GreenletExit)
        self.host = before
        if not thread.dead:  # it catches whatever ends it: it stays where it is
            _LEFT.append(thread)

    def wait(self, waiter: _Waiter, timeout_s: float | None) -> bool:
        """Let other threads run; returns whether the waiter was woken, or False after the time-out."""
        host, thread = self.host, getcurrent()
        if host.is_dead:
            host.last_waits += 1
            if host.last_waits > LAST_WAITS:
                thread.parent.switch()
            raise GreenletExit
        if thread is self._hub:
            raise AssertionError("the machine itself waits: run it as a thread of a host")
        if timeout_s is not None and timeout_s < math.inf:
            at_ns = self.now_ns + max(0, math.ceil(timeout_s * 1e6) * 1_000)
            heapq.heappush(self.instants, (at_ns, next(self._serial), waiter))
        # The next thread goes on from here: a way through the hub would be a switch more. The hub starts new threads,
        # since a thread begins with the recursion depth of the one that starts it.
        self._handed = found = self._next() if self._steps < SPIN else None
        if found is None or not found[0]:
            return bool(self._hub.switch())
        self._handed = None
        return found[1] if found[0] is thread else bool(found[0].switch(found[1]))

    def wake(self, waiter: _Waiter) -> None:
        if not waiter.is_over:
            waiter.is_over = True
            self.ready.append((waiter.thread, True))

    def run_until(self, until_ns: int) -> None:
        """Run the threads of all hosts up to an instant; called outside of them."""
        assert getcurrent() is self._hub
        self._until_ns = until_ns
        while (found := self._handed or self._next()) is not None:
            self._handed, self.host = None, self._host_of[found[0]]
            found[0].switch(found[1])
            self.host = self.outside
        self.now_ns = max(self.now_ns, until_ns)

    def _next(self) -> tuple[greenlet, bool] | None:
        """Return the thread that goes on, and whether it was woken; None where none does before ``run_until`` ends."""
        ready, instants, host_of = self.ready, self.instants, self._host_of
        while True:
            while ready:
                found = ready.popleft()
                host = host_of.get(found[0])
                if host is None or host.is_dead or found[0].dead:
                    continue
                if host.is_frozen:
                    host.aside.append(found)
                    continue
                self.now_ns += SWITCH_NS
                self._steps += 1
                if self._steps > SPIN:
                    self._look_for_a_spin(found[0])
                self.host = host
                return found
            if not instants or instants[0][0] > self._until_ns:
                return None
            at_ns, _, waiter = heapq.heappop(instants)
            if at_ns > self.now_ns:
                self.now_ns = at_ns
            if not waiter.is_over:
                waiter.is_over = True
                ready.append((waiter.thread, False))

    def read_ns(self, _clock: int = 0) -> int:
        """Return the monotonic clock, as a thread reads it."""
        self.now_ns = now_ns = self.now_ns + READ_NS
        self._steps += 1
        if self._steps > SPIN:
            self._look_for_a_spin(getcurrent())
        return now_ns

    def _look_for_a_spin(self, thread: greenlet) -> None:
        before_ns, self._steps, self._stepped_ns = self._stepped_ns, 0, self.now_ns
        if self.now_ns < before_ns + _NS:
            host = self._host_of.get(thread, self.outside)
            raise Spin(f"{host.name}: {SPIN} steps within a second; the last one was of {self.name_of(thread)}")

    @staticmethod
    def name_of(thread: greenlet) -> str:
        frame = thread.gr_frame
        while frame is not None and frame.f_code.co_filename == __file__:
            frame = frame.f_back
        return f"{frame.f_code.co_qualname}, line {frame.f_lineno}" if frame is not None else repr(thread)

    @contextmanager
    def installed(self, *more: ModuleType) -> Iterator[Machine]:
        """Give the product's modules, and others, the time and the threads of this machine."""
        changed: list[tuple[ModuleType, str, object]] = []
        for module in [*product(), *more]:
            for name, real, virtual in (
                ("time", real_time, self.time),
                ("threading", real_threading, self.threading),
            ):
                if module.__dict__.get(name) is real:
                    changed.append((module, name, real))
                    setattr(module, name, virtual)
        try:
            yield self
        finally:
            for host in {*self._host_of.values()}:
                host.kill()
            for module, name, real_module in changed:
                setattr(module, name, real_module)


#: Threads of dead hosts that caught what ends a greenlet; collecting them would try it once more.
_LEFT: list[greenlet] = []


def product() -> list[ModuleType]:
    return [module for name, module in sorted(sys.modules.items()) if name.partition(".")[0] == "celery_wheel"]


class VirtualTime:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._read_ns = self.monotonic_ns = self.clock_gettime_ns = machine.read_ns

    def __getattr__(self, name: str) -> Any:
        return getattr(real_time, name)

    def monotonic(self) -> float:
        return self._read_ns() / _NS

    perf_counter = monotonic

    def time_ns(self) -> int:
        machine = self._machine
        return machine.epoch_ns + machine.now_ns + machine.host.wall_step_ns

    def time(self) -> float:
        return self.time_ns() / _NS

    def sleep(self, seconds: float) -> None:
        self._machine.wait(_Waiter(getcurrent()), seconds)


class VirtualLock:
    """A lock; reentrant where it is made so."""

    def __init__(self, machine: Machine, *, reentrant: bool = False) -> None:
        self._machine = machine
        self._reentrant = reentrant
        self._owner: greenlet | None = None
        self._depth = 0
        self._waiters: deque[_Waiter] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        thread = getcurrent()
        if self._owner is None:
            self._owner, self._depth = thread, 1
            return True
        if self._machine.host.is_dead:
            return True
        if self._owner is thread and self._reentrant:
            self._depth += 1
            return True
        while self._owner is not None:
            if not blocking:
                return False
            if self._owner is thread:
                raise AssertionError("a thread waits for its own lock")
            waiter = _Waiter(thread)
            self._waiters.append(waiter)
            if not self._machine.wait(waiter, None if timeout < 0 else timeout):
                return False
        self._owner, self._depth = thread, 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth > 0:
            return
        self._owner = None
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.is_over:
                self._machine.wake(waiter)
                return

    __enter__ = acquire

    def locked(self) -> bool:
        return self._owner is not None

    def __exit__(self, *_: object) -> None:
        self.release()


class VirtualCondition:
    def __init__(self, machine: Machine, lock: VirtualLock | None = None) -> None:
        self._machine = machine
        self._lock = lock or VirtualLock(machine, reentrant=True)
        self._waiters: deque[_Waiter] = deque()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        waiter = _Waiter(getcurrent())
        self._waiters.append(waiter)
        self._lock.release()
        woken = False
        try:
            woken = self._machine.wait(waiter, timeout)
        finally:
            if not woken:
                waiter.is_over = True
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
            self._lock.acquire()
        return woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until_s = None if timeout is None else self._machine.now_s + timeout
        while not (found := predicate()):
            left_s = None if until_s is None else until_s - self._machine.now_s
            if left_s is not None and left_s <= 0:
                break
            self.wait(left_s)
        return found

    def notify(self, n: int = 1) -> None:
        while n > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.is_over:
                self._machine.wake(waiter)
                n -= 1

    def notify_all(self) -> None:
        if self._waiters:
            self.notify(len(self._waiters))


class VirtualEvent:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._waiters: deque[_Waiter] = deque()
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        while self._waiters:
            self._machine.wake(self._waiters.popleft())

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            waiter = _Waiter(getcurrent())
            self._waiters.append(waiter)
            if not self._machine.wait(waiter, timeout) and waiter in self._waiters:
                self._waiters.remove(waiter)
        return self._is_set


class VirtualThread:
    def __init__(
        self,
        machine: Machine,
        target: Callable[..., object],
        name: str = "thread",
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        daemon: bool | None = None,
    ) -> None:
        self._machine = machine
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        self.name = name
        self.daemon = daemon
        self.ident: int | None = None
        self._over = VirtualEvent(machine)

    def start(self) -> None:
        self.ident = next(self._machine._serial) + 1
        self._machine.spawn(self._run)

    def _run(self) -> None:
        try:
            self._target(*self._args, **self._kwargs)
        finally:
            self._over.set()

    def is_alive(self) -> bool:
        return self.ident is not None and not self._over.is_set()

    def join(self, timeout: float | None = None) -> None:
        self._over.wait(timeout)


class VirtualThreading:
    def __init__(self, machine: Machine) -> None:
        self.Thread = partial(VirtualThread, machine)
        self.Lock = partial(VirtualLock, machine)
        self.RLock = partial(VirtualLock, machine, reentrant=True)
        self.Condition = partial(VirtualCondition, machine)
        self.Event = partial(VirtualEvent, machine)

    def __getattr__(self, name: str) -> Any:
        return getattr(real_threading, name)
