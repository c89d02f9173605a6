"""Programs that do to the watchdog what programs do; each prints ``done`` if it ends well."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import otel_goodput as goodput
from otel_goodput._incidents.timer import timer
from otel_goodput._journal.stacks import Dump

LATER, CANCEL = faulthandler.dump_traceback_later, faulthandler.cancel_dump_traceback_later


def start(folder: str, **options: Any) -> goodput.Recorder:
    known: dict[str, Any] = {"directory": f"{folder}/runs", "watchdog": "1s,gil", "exporters": "none", **options}
    return goodput.configure("job", **{"integrations": "none", **known})


def steps(seconds: float) -> float:
    """Take steps for so long; return the longest time between two of them, s, which on a busy machine may be any."""
    began = latest = time.monotonic()
    longest = 0.0
    for number, _ in goodput.steps(range(1_000_000)):
        time.sleep(0.02)
        latest, before = time.monotonic(), latest
        longest = max(longest, latest - before)
        if number > 5 and latest - began > seconds:
            break
    return longest


def step_until_moved_on(recorder: goodput.Recorder) -> Dump:
    """Take steps until it is noted that those go on; return the latest stacks."""
    until = time.monotonic() + 30
    while (dump := recorder._observers.watchdog.fired()) is None or dump.moved_on is None:
        assert time.monotonic() < until, dump
        steps(0.1)
    return dump


def wait(condition: Any, seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def armed(recorder: goodput.Recorder) -> bool:
    return timer.is_set(recorder._observers.watchdog)


def own_timer(folder: str) -> None:
    """The program's own timer goes on, and this package's does not come back."""
    recorder = start(folder)
    with goodput.job(), Path(f"{folder}/own").open("w+") as own:
        wait(lambda: armed(recorder))
        faulthandler.dump_traceback_later(1.5, file=own)
        steps(0.8)
        with goodput.step(100):
            wait(lambda: recorder._observers.watchdog.fired() is not None)  # the other way goes on
            wait(lambda: "most recent call first" in Path(f"{folder}/own").read_text())
        assert not armed(recorder)
        assert "faulthandler" in str(recorder.report().to_json()["warnings"])
    goodput.shutdown()
    assert (faulthandler.dump_traceback_later, faulthandler.cancel_dump_traceback_later) == (LATER, CANCEL)


def replaced(folder: str) -> None:
    """Somebody else puts a function in place later: it stays."""
    start(folder)
    assert faulthandler.dump_traceback_later is not LATER
    mine: Any = lambda *_, **__: None  # noqa: E731
    faulthandler.dump_traceback_later = mine
    goodput.shutdown()
    assert faulthandler.dump_traceback_later is mine
    assert faulthandler.cancel_dump_traceback_later is CANCEL


def forks(folder: str) -> None:
    """A child ends as without the timer, which it would wait for; it may use the timer itself."""
    after: list[bool] = []  # each fork, before the keeper can set it again: this is called before what lets it
    os.register_at_fork(after_in_parent=lambda: after.append(armed(recorder)))
    recorder = start(folder)
    with goodput.job():
        wait(lambda: armed(recorder))
        for ending in (sys.exit, lambda: faulthandler.dump_traceback_later(60, file=sys.stderr)):
            child = os.fork()
            if not child:
                ending()
                sys.exit(0)
            assert not after[-1]
            wait(lambda child=child: os.waitpid(child, os.WNOHANG)[0])  # type: ignore[misc]
        wait(lambda: armed(recorder))  # the parent's is set again
        for _ in range(100):
            child = os.fork()
            if not child:
                os._exit(0)
            os.waitpid(child, 0)


def closed_descriptors(folder: str) -> None:
    """All descriptors are closed; what is opened in their place gets no stacks."""
    recorder = start(folder)
    with goodput.job():
        wait(lambda: armed(recorder))
        os.closerange(3, 256)
        files = [Path(f"{folder}/data-{number}").open("w") for number in range(60)]  # noqa: SIM115
        steps(0.6)
        with goodput.step(100):
            wait(lambda: recorder._observers.watchdog.fired() is not None)
        goodput.shutdown()
    for file in files:
        assert not Path(file.name).read_bytes()


def at_rest(folder: str) -> None:
    """No timer before the job, between jobs and after the last; none with watchdog=off, none without a folder."""
    recorder = start(folder)
    time.sleep(0.4)
    assert not armed(recorder)
    for _ in range(2):
        with goodput.job():
            wait(lambda: armed(recorder))
        wait(lambda: not armed(recorder))
    stacks = [*Path(folder).glob("runs/*/journal/*.stacks")]
    goodput.shutdown()
    assert stacks and not stacks[0].exists() and faulthandler.dump_traceback_later is LATER
    for options in ({"watchdog": "off"}, {"directory": "/proc/nothing"}):
        recorder = goodput.configure("other", **{"directory": f"{folder}/off", "exporters": "none", **options})
        with goodput.job():
            steps(0.3)
            assert not armed(recorder)
            assert options.get("watchdog") != "off" or faulthandler.dump_traceback_later is LATER
        goodput.shutdown()


def no_timer(folder: str) -> None:
    """Unless that is set, the interpreter's timer is not used: a thread of this package writes the stacks."""
    recorder = start(folder, watchdog="1s")
    with goodput.job():
        longest = steps(0.6)
        assert faulthandler.dump_traceback_later is LATER
        assert longest > 0.9 or not [*Path(folder).glob("runs/*/journal/*.stacks")]
        with goodput.step(1_000_000):
            wait(lambda: recorder._observers.watchdog.fired() is not None)
            assert not armed(recorder)
        dump = step_until_moved_on(recorder)
        assert not dump.by_timer and dump.step == 1_000_000
    goodput.shutdown()
    assert [*Path(folder).glob("runs/*/journal/*.stacks")]


def two_jobs(folder: str) -> None:
    """Two recorders share the one timer: the second one goes without."""
    one, other = (
        goodput.Recorder(name, directory=f"{folder}/runs", exporters="none", watchdog="gil") for name in ("a", "b")
    )
    with one.job(), other.job():
        wait(lambda: armed(one) != armed(other))
        time.sleep(0.3)
        assert armed(one) != armed(other)
    one.shutdown()
    assert faulthandler.dump_traceback_later is not LATER
    other.shutdown()
    assert faulthandler.dump_traceback_later is LATER


def full_disk(folder: str) -> None:
    """The disk is full: training goes on, and the stacks that fit into what was reserved are there."""
    recorder = start(folder)
    real, full = os.pwrite, threading.Event()

    def pwrite(descriptor: int, data: bytes, place: int) -> int:
        if full.is_set() and len(data) > 20_000:
            raise OSError(28, "No space left on device")
        return real(descriptor, data, place)

    os.pwrite = pwrite
    with goodput.job():
        steps(0.8)
        full.set()
        for number in range(200):
            threading.Thread(target=time.sleep, args=(60,), daemon=True, name=f"t{number}").start()
        with goodput.step(100):
            time.sleep(2.5)
        steps(0.3)
    os.pwrite = real
    assert recorder.report().to_json()["steps"]["kept"] > 5
    goodput.shutdown()
    os._exit(print("done", flush=True) or 0)


def resumed(folder: str) -> None:
    """A standstill that is over: noted, uploaded; and what the interpreter writes although the GIL is held."""
    recorder = start(folder, directory=f"file://{folder}/remote")
    with goodput.job():
        steps(1.2)
        with goodput.step(1_000_000):
            ctypes.PyDLL(None).sleep(3)
        dump = step_until_moved_on(recorder)
        assert dump.by_timer, dump
        assert dump.line.startswith("programs.py:"), dump.line
    goodput.shutdown()
    [file] = Path(folder).glob("remote/*/journal/*.stacks")
    assert b'"moved on"' in file.read_bytes() and b'"armed"' in file.read_bytes()


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
    print("done")
