"""A program whose steps become slower by one function, which is profiled: prints what the profile names, and how.

Arguments: the folder of runs, what is slow, and a seed.
"""

from __future__ import annotations

import ctypes
import json
import random
import re
import sys
import threading
import time
from collections.abc import Callable

import otel_goodput as goodput
from otel_goodput import api
from otel_goodput._incidents import profiler
from otel_goodput._journal.profiles import Profile
from otel_goodput._live import keeper

profiler.WARM_STEPS, profiler.WARM_S, profiler.SAMPLED_S, keeper.TICK_S = 5, 0.1, 4.0, 0.01


def crunch(seconds: float) -> None:
    end, number = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        number += 1


def forward(seconds: float) -> None:
    crunch(seconds * 0.4)
    wait(seconds * 0.6)


def wait(seconds: float) -> None:
    time.sleep(seconds)


def load(seconds: float) -> None:
    time.sleep(seconds)


def update(seconds: float) -> None:
    for _ in range(3):
        crunch(seconds / 3)


# --- what is slow -----------------------------------------------------------------------------------------------------

TEXT = "a" * 18 + "b"


def slow_sleep(seconds: float) -> None:
    time.sleep(seconds)


def slow_loop(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(50))


def slow_regex(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        re.search("(a+)+c", TEXT[:13])


def slow_call(seconds: float) -> None:
    ctypes.CDLL(None).usleep(int(seconds * 1e6))  # gives up the GIL, as numpy does


def slow_sort(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sorted(range(3000), key=lambda number: -number)


SLOW: dict[str, Callable[[float], None]] = {
    one.__name__: one for one in (slow_sleep, slow_loop, slow_regex, slow_call, slow_sort)
}


def main() -> None:
    folder, what, seed = sys.argv[1:]
    dice = random.Random(seed)
    step_s = dice.uniform(0.02, 0.04)
    parts = [dice.uniform(0.5, 2) for _ in range(3)]
    forward_s, load_s, update_s = (step_s * part / sum(parts) for part in parts)
    more_s = step_s * dice.uniform(0.2, 0.5)
    slow = SLOW[what]
    recorder = goodput.configure("t", directory=folder, exporters="none", run_id=f"{what}-{seed}")
    taken: list[tuple[Profile, str]] = []
    over = threading.Event()

    def done(profile: Profile, file: str) -> None:
        taken.append((profile, file))
        over.set()

    assert recorder is api._recorder
    observed = recorder._observers.profiler
    begun = False
    with goodput.job():
        for _ in goodput.steps(iter(int, 1)):
            load(load_s)
            forward(forward_s)
            update(update_s)
            if observed._baseline is not None:
                if not begun:
                    begun = True
                    refused = observed.start("slowdown", 1, done=done)
                    assert not refused, refused
                slow(more_s)
            if over.is_set():
                break
    [(profile, file)] = taken
    grown = [(one.name, one.place, one.share, one.before) for one in profile.grown]
    print(json.dumps({"file": file, "grown": grown, "samples": profile.samples, "note": profile.note}))


main()
