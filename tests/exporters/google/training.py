"""A small job that trains nothing; JSON on its command line says what to do (see ``OPTIONS``).

It tells how far it has got, a line of JSON each: ``["trained", null]``; where it is asked to pause it then waits for a
line. Its last word is ``["over", …]``, its own account once the recorder has stopped.
"""

from __future__ import annotations

import atexit
import importlib
import json
import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import otel_goodput as goodput
from otel_goodput._accounting import Totals
from otel_goodput._metrics.instruments import ROWS, attributed
from otel_goodput.exporters.google import OTLP_PACKAGES, PACKAGES
from otel_goodput.semconv import STEP_DURATION

OPTIONS: dict[str, Any] = {
    "job": "llama",
    "exporters": ["gcp", "workload", "gcp-otlp"],
    "configure": {},
    "steps": 20,  # before the middle, and as many after it
    "unit": 0.001,  # seconds of a step
    "pauses": [],  # "ready", "middle", "trained": wait there for a line
    "middle": "nothing",  # what happens there, a key of MIDDLES
    "lasts": 0.0,  # seconds from then on, at least
    "flush": False,  # at the end, once the job has ended
    "seed": None,  # of Python's `random`, before anything else
    "threadless": False,  # no thread can be started at exit, on any Python; from 3.12 on that is so
    "warm": False,  # Google's libraries are imported already, which takes a second
}

Account = dict[str, list[tuple[float, dict[str, str]]]]
"""Values and attributes by the metric's name; of the step durations how many there are."""


def account(totals: Totals, before: int) -> Account:
    """`before`: how many steps were executed in earlier attempts."""
    durations = {STEP_DURATION.name: [(totals.executed - before, dict[str, str]())]}
    return {metric.name: attributed(metric, rows(totals)) for metric, rows in ROWS} | durations


def tell(word: str, value: Any = None) -> None:
    print(json.dumps([word, value]), flush=True)


def start_no_threads() -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    threading.Thread.start = refuse  # type: ignore[method-assign]


def train(options: dict[str, Any]) -> None:
    random.seed(options["seed"])
    for package in (*PACKAGES, *OTLP_PACKAGES) if options["warm"] else ():
        importlib.import_module(package)
    reach("ready", options)
    pid = os.getpid()
    # The recorder's own handler is registered later, and so called before this one.
    atexit.register(lambda: tell("over", account(recorder.totals(), before)) if os.getpid() == pid else None)
    recorder = goodput.configure(
        options["job"], exporters=options["exporters"], integrations="none", step_sampling=1, **options["configure"]
    )
    if options["threadless"]:
        atexit.register(start_no_threads)  # the last one registered is the first one called
    before = recorder.totals().executed
    with goodput.job():
        with goodput.accelerator_init():
            time.sleep(options["unit"])
        with goodput.training_prep():
            time.sleep(options["unit"])
        do_steps(range(options["steps"]), options["unit"])
        reach("middle", options)
        until = time.monotonic() + options["lasts"]
        MIDDLES[options["middle"]]()
        do_steps(range(options["steps"], 2 * options["steps"]), options["unit"])
        time.sleep(max(until - time.monotonic(), 0.0))
    if options["flush"]:
        goodput.flush()
    reach("trained", options)


def do_steps(numbers: range, unit: float) -> None:
    for number in numbers:
        with goodput.data_loading():
            pass
        with goodput.step(number):
            time.sleep(unit)
    with goodput.custom("eval"):
        pass


def reach(word: str, options: dict[str, Any]) -> None:
    tell(word)
    if word in options["pauses"]:
        sys.stdin.readline()


# --- what happens in the middle ---------------------------------------------------------------------------------------


def die() -> None:
    """Once everything has been exported."""
    goodput.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def child(end: Callable[[], None]) -> Callable[[], None]:
    """Forks a child that works on as if it were the job, until `end`; prints its exit status."""

    def fork() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on: there are threads
            pid = os.fork()
        if pid == 0:
            with goodput.step(1000), goodput.custom("in the child"):
                time.sleep(0.5)  # seconds in which the processors' threads export, if they do
            end()
        tell("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    return fork


def load(number: int) -> int:
    """What a worker of a data loader does."""
    with goodput.data_loading(), goodput.custom("in the child"):
        time.sleep(0.01)
    return number


def workers() -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        loaded = pool.map(load, range(20))
        pool.close()
        pool.join()
    tell("child", sum(loaded) - sum(range(20)))


MIDDLES: dict[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "flush": lambda: tell("flushed", goodput.flush()),
    "die": die,
    "a child that leaves": child(lambda: os._exit(0)),
    "a child that ends": child(lambda: sys.exit(0)),
    "workers": workers,
}

if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    train({**OPTIONS, **json.loads(sys.argv[1])})
