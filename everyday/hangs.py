"""Checks that the rank and the line are named when one of 8 ranks that step together through gloo stands still.

They stand still again and again, each time another rank in another way, and go on. ``python -m everyday.hangs 50``
tries so often. With more arguments this is one of the ranks: INDEX PORT TRIALS.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

NAME = "everyday.hangs"
RANKS = 8
TRIALS = 7
LIMIT_S = 1.0
LATEST_S = 5.0  # after the limit, stacks are there
STANDS_S = 6.0
MOVES_S = 1.0
PATIENCE_S = 300.0
KINDS = ("sleep", "deadlock", "gil", "worker", "queue", "disk")  # and the last one is stopped, and killed


def kind_of(trial: int, trials: int) -> str:
    return "stop" if trial == trials - 1 else KINDS[trial % len(KINDS)]


# --- a rank -----------------------------------------------------------------------------------------------------------


def stand_still(kind: str) -> None:
    """Stand still for ``STANDS_S``; the parent opens what is waited for."""
    if kind == "sleep":
        time.sleep(STANDS_S)  # sleep
    elif kind == "deadlock":
        one, other = threading.Lock(), threading.Lock()

        def hold() -> None:
            with other:
                one.acquire(timeout=STANDS_S)

        one.acquire()
        threading.Thread(target=hold, daemon=True).start()
        time.sleep(0.05)
        other.acquire(timeout=STANDS_S)  # deadlock
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "gil":
        ctypes.PyDLL(None).sleep(int(STANDS_S))  # gil
    elif kind == "worker":
        worker = subprocess.Popen(["sleep", str(STANDS_S)], stdout=subprocess.PIPE)
        worker.communicate()  # worker
    elif kind == "queue":
        try:
            queue.Queue[int]().get(timeout=STANDS_S)  # queue
        except queue.Empty:
            pass
    elif kind == "disk":
        Path("full").open("wb").close()  # disk


def rank(index: int, port: int, trials: int) -> None:
    import torch
    import torch.distributed as dist

    import otel_goodput as goodput

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=index, world_size=RANKS)
    options = {"process_index": index, "process_count": RANKS, "run_id": "hangs", "exporters": "none"}
    goodput.configure("hangs", watchdog=f"{LIMIT_S}s,gil", directory="runs", **options)
    numbers, step = torch.zeros(4), 0
    with goodput.job():
        for trial in range(trials):
            begun = time.monotonic()
            while True:
                with goodput.data_loading():
                    time.sleep(0.01)
                    over = time.monotonic() - begun > MOVES_S
                    if over and index == trial % RANKS:
                        Path(f"stands-{trial}").touch()
                        stand_still(kind_of(trial, trials))
                with goodput.step(step):
                    numbers[0] = over and index == trial % RANKS
                    dist.all_reduce(numbers)  # together
                step += 1
                if numbers[0]:
                    break
    dist.barrier()


# --- the check --------------------------------------------------------------------------------------------------------


def line_of(mark: str) -> str:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    [number] = [at for at, line in enumerate(lines, 1) if line.endswith(f"  # {mark}")]
    return f"hangs.py:{number}"


def wrong(folder: Path, trial: int, kind: str) -> str:
    """What is not named as it is, while a rank stands still; empty if all is right."""
    from otel_goodput._journal.rundir import RunDirectory
    from otel_goodput.reports.run import RecordedRun
    from otel_goodput.reports.stacks import standstill

    culprit = trial % RANKS
    since = (folder / f"stands-{trial}").stat().st_mtime
    expected = RANKS - (kind == "stop")
    while True:
        still = standstill(RecordedRun(RunDirectory(folder / "runs/hangs")))
        late = time.time() - since - LIMIT_S
        current = [dump for dump in still.dumps.values() if dump.time / 1e9 > since and dump.moved_on is None]
        if len(current) >= expected:
            break
        if late > LATEST_S:
            return f"{kind}: {len(current)} of {expected} ranks left stacks within {late:.1f} s after the limit"
        time.sleep(0.05)
    seen = "\n".join(still.lines())
    if list(still.waits_for) != [culprit]:
        return f"{kind}: not rank {culprit}, {still.waits_for}: {seen}"
    others = [group for group in still.groups if culprit not in group.ranks]
    if {(one.place.line, one.place.function) for one in others} != {(line_of("together"), "all_reduce")}:
        return f"{kind}: the others are elsewhere: {seen}"
    if kind == "stop":
        return "" if "SIGSTOP" in still.verdict() else f"{kind}: {seen}"
    line = next(group.place.line for group in still.groups if culprit in group.ranks)
    return "" if line == line_of(kind) else f"{kind}: {line} instead of {line_of(kind)}: {seen}"


def tried(folder: Path, trials: int) -> list[str]:
    """Run a job whose ranks stand still so often; returns what was wrong."""
    os.mkfifo(folder / "full")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", NAME]
    ranks = [
        subprocess.Popen([*command, str(index), str(port), str(trials)], cwd=folder, env=environment)
        for index in range(RANKS)
    ]
    failures = []
    try:
        for trial in range(trials):
            until = time.monotonic() + PATIENCE_S
            while not (folder / f"stands-{trial}").exists():
                if time.monotonic() > until or any(one.poll() for one in ranks):
                    return [*failures, f"trial {trial} never came: {[one.poll() for one in ranks]}"]
                time.sleep(0.02)
            kind = kind_of(trial, trials)
            if text := wrong(folder, trial, kind):
                failures.append(text)
            if kind == "disk":
                (folder / "full").open("rb").close()
        return failures
    finally:
        for one in ranks:
            one.kill()


def check() -> str:
    """Let ranks stand still in every way; returns "as they stood", or what is wrong."""
    if importlib.util.find_spec("torch") is None:
        return "not compared: torch is not installed"
    with tempfile.TemporaryDirectory() as folder:
        return "; ".join(tried(Path(folder), TRIALS)) or "as they stood"


if __name__ == "__main__":
    if len(sys.argv) > 2:
        rank(*map(int, sys.argv[1:]))
    else:
        with tempfile.TemporaryDirectory() as place:
            count = int(sys.argv[1])
            failed = tried(Path(place), count)
        print("\n".join([*failed, f"{count - len(failed)} of {count}"]))
