"""What a driver says of accelerators, read by a thread of its own: one that hangs costs nothing but its figures."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce
from operator import or_
from typing import Final, NamedTuple, Protocol

from otel_goodput._journal.usage_now import UNKNOWN
from otel_goodput._runtime.guard import containing, report_once, started

PATIENCE_S: Final = 1.0  # for a reading; what comes later counts for nothing
SHARE: Final = 0.001  # of a core, that reading may take at most: a driver that takes more is read less often
FAILURES: Final = 3  # one after another, after which a driver is left alone


class Reading(NamedTuple):
    """What is known of accelerators together, at one moment; ``UNKNOWN`` where their driver does not tell."""

    kind: str  # one of ``semconv.ACCELERATORS``
    devices: int
    busy: float  # share of the driver's latest period in which they computed, their mean
    memory: int  # in use, bytes
    memory_limit: int
    power: int  # mW
    energy: int  # since the reading before, mJ
    throttled: int  # why their clocks are held down: a bit for each of ``THROTTLE_REASONS``
    held_down: float = 0.0  # share of the devices whose clocks are

    @classmethod
    def together(cls, readings: Sequence[Reading]) -> Reading:
        """Return one reading of several of a device each, of which there is one at least."""
        columns = dict(zip(cls._fields, zip(*readings, strict=True), strict=True))
        unknown = {name for name, column in columns.items() if UNKNOWN in column}
        sums = {
            name: UNKNOWN if name in unknown else sum(columns[name])
            for name in ("devices", "busy", "memory", "memory_limit", "power", "energy")
        }
        known = [bits for bits in columns["throttled"] if bits != UNKNOWN]
        devices = len(readings)
        return cls(
            kind=readings[0].kind,
            devices=devices,
            busy=UNKNOWN if "busy" in unknown else sums["busy"] / devices,
            memory=sums["memory"],
            memory_limit=sums["memory_limit"],
            power=sums["power"],
            energy=sums["energy"],
            throttled=reduce(or_, known) if known else UNKNOWN,
            held_down=sum(map(bool, known)) / devices,
        )


class Driver(Protocol):
    """Reads accelerators, on one thread. All but :meth:`stop` may wait, and raise."""

    @property
    def kind(self) -> str: ...

    def read(self) -> Reading | None:
        """Return what is known; None if this process computes with none."""

    def stop(self) -> None:
        """From another thread, have a reading that waits end, if that is possible."""

    def close(self) -> None: ...


class Accelerators:
    """Has all drivers read, one after the other, on a thread of its own.

    Args:
        makers: each makes a driver, or raises ImportError: its library is not installed.
    """

    def __init__(self, makers: Sequence[Callable[[], Driver]]) -> None:
        self._drivers = list[Driver]()
        for make in makers:
            with suppress(ImportError):
                self._drivers.append(make())
        self._failed = Counter[str]()  # how often, without a reading in between
        self._reading: Reading | None = None
        self._due = 0.0  # when to read again at the earliest, s, monotonic
        self._wanted, self._there = threading.Event(), threading.Event()
        self._ended = False
        self._thread: threading.Thread | None = None

    def read(self) -> Reading | None:
        """Return what is known now; None if there is nothing, or it takes longer than ``PATIENCE_S``.

        It may be what is known since the reading before, if it is too early for another one.
        """
        if not self._drivers or self._wanted.is_set():  # the driver hangs
            return None
        if time.monotonic() < self._due:
            return None if self._reading is None else self._reading._replace(energy=0)  # the next one has all
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="goodput-accelerators", daemon=True)
            if not started(thread, "the utilization of accelerators is not sampled"):
                return None
            self._thread = thread
        self._there.clear()
        self._wanted.set()
        return self._reading if self._there.wait(PATIENCE_S) else None

    def close(self) -> None:
        """End the thread, without waiting for it: a driver that hangs ends with the process."""
        self._ended = True
        for driver in self._drivers:
            with containing(f"reading of {driver.kind}s"):
                driver.stop()
        self._wanted.set()

    def _run(self) -> None:
        while not self._ended:  # looked at behind clear(): close() may be called during a reading
            self._wanted.wait()
            if not self._ended:
                began, spent = time.monotonic(), time.thread_time()
                self._reading = next(filter(None, map(self._read, [*self._drivers])), None)
                self._due = began + (time.thread_time() - spent) / SHARE
            self._wanted.clear()
            self._there.set()
        for driver in self._drivers:
            with containing(f"reading of {driver.kind}s"):
                driver.close()

    def _read(self, driver: Driver) -> Reading | None:
        try:
            reading = driver.read()
            self._failed[driver.kind] = 0
            return reading
        except Exception as error:
            self._failed[driver.kind] += 1
            if self._failed[driver.kind] >= FAILURES:
                self._drivers.remove(driver)
            if not self._ended:
                text = "utilization of %ss is not known: %s: %s"
                report_once(f"reading of {driver.kind}s", text, driver.kind, type(error).__name__, error)
            return None
