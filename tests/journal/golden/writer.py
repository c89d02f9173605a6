"""Writes the run folders of this directory: ``python tests/journal/golden/writer.py [NAME ...]``, all by default.

Each program below is a process of its own, most of them end by SIGKILL. `NAME.tar.xz` is the folder as it was left (one
of them as it was while its process lived), `NAME.json` what the writing version said of it. `test_golden.py` says what
a later version owes to them.

Wall clocks are set back to the year 2025, so that no reader's clock lies before what it reads. Identities of spans
count up: random ones do not compress.

Longer than other files: the programs stay together with what drives them.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
NS = 1_000_000_000
BEGAN = 1_750_000_000  # unix seconds: June 2025

# In front of every program: sys.argv is (directory, seconds since BEGAN).
PRELUDE = f"""
import itertools, os, random, signal, sys, time

_wall, _monotonic = time.time_ns, time.monotonic_ns
_before = {BEGAN} * 10**9 + round(float(sys.argv[2]) * 1e9) - _monotonic()
time.time_ns = lambda: _before + _monotonic()
time.time = lambda: time.time_ns() / 1e9

class Counting(random.Random):
    numbers = itertools.count(1)
    def getrandbits(self, bits):
        return next(self.numbers)

import otel_goodput as goodput
from otel_goodput._recording import ids
ids.random.Random = Counting

def configure(**options):
    whole = dict(run_id="run", directory=sys.argv[1], exporters="none", integrations="none")
    return goodput.configure("golden", **(whole | options))

def work(milliseconds):
    time.sleep(milliseconds / 1e3)

def train(first, count, load=2, step=5):
    for number in range(first, first + count):
        with goodput.data_loading():
            work(load)
        with goodput.step(number):
            work(step)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def say(text):
    print(text, flush=True)
"""

# A first life with everything that a small job has; it is killed in the middle of a step.
FIRST_LIFE = """
configure()
with goodput.job():
    with goodput.accelerator_init():
        work(10)
    with goodput.training_prep():
        work(20)
    with goodput.step(0):
        work(60)
    train(1, 9)
    with goodput.checkpoint_save(9):
        work(8)
    with goodput.custom("eval"):
        work(6)
    train(10, 6)
    with goodput.checkpoint_save(15, durable=False) as save:
        work(4)
    train(16, 4)
    with goodput.step(20):
        with goodput.custom("log metrics"):
            work(3)
        work(5)
        {last}
"""

# After it: the state of step 9 is restored, six steps are run again; this one is killed between two steps.
SECOND_LIFE = """
configure()
with goodput.job():
    with goodput.accelerator_init():
        work(10)
    with goodput.checkpoint_restore(9):
        work(12)
    train(10, 12)
    with goodput.checkpoint_save(21, durable=False) as save:
        work(4)
    train(22, 2)
    save.durable()
    train(24, 3)
    work(5)
    die()
"""

# A clean end: a rollback in the process, an evaluation inside a lost step, both kinds of saves, names that are long.
ENDED = """
configure(windows=["1h", "10m"])
with goodput.job():
    with goodput.training_prep():
        work(10)
    for step, batch in goodput.steps(range(12)):
        work(5)
        if step == 5:
            with goodput.checkpoint_save(step):
                work(5)
        if step == 9:
            with goodput.custom("an evaluation with a rather long name: " + "über alles " * 9):
                work(7)
    with goodput.checkpoint_restore(5):
        work(6)
    train(6, 8)
    with goodput.checkpoint_save(13, durable=False) as save:
        work(4)
    train(14, 2)
    save.durable()
    train(16, 2)
    with goodput.checkpoint_save(17, durable=False):
        work(4)
    for step, batch in goodput.steps(range(9), start=18):
        work(4)
        if step == 22:
            break
    work(3)
goodput.shutdown()
"""

# Long enough for a sealed segment.
SEALED = """
configure()
with goodput.job():
    with goodput.checkpoint_save(0):
        pass
    for step, _ in goodput.steps(range(8_300)):
        if step % 1000 == 0:
            with goodput.custom(f"eval {step % 3}"):
                pass
goodput.shutdown()
"""

# A snapshot is written in the middle of a step, while a save is not durable yet; the rest is in the segment behind it.
SNAPSHOT = """
recorder = configure(windows=["1h", "1s"])
with goodput.job():
    train(8_000, 30)
    with goodput.checkpoint_save(8_029, durable=False) as save:
        work(4)
    train(8_030, 4)
    with goodput.step(8_034):
        work(5)
        recorder._keeper._snapshot_time -= 1e6
        goodput.flush()
        work(5)
    train(8_035, 2)
    save.durable()
    train(8_037, 2)
    train(8_036, 4)
    with goodput.data_loading():
        work(5)
        die()
"""

# What the platform and the fleet do: a notice, slices that go and come, time that is left out.
DISRUPTED = """
signal.signal(signal.SIGTERM, lambda *_: None)
configure(integrations="signals")
@goodput.on_preemption
def announced():
    say("announced")
with goodput.job():
    goodput.slice_counts(4, 4, 4)
    with goodput.training_prep():
        work(10)
    train(0, 6)
    goodput.slice_counts(3, 3, 4)
    with goodput.elastic_wait("slice_down"):
        work(9)
    with goodput.elastic_reinit():
        work(8)
    train(6, 4)
    with goodput.exclusion():
        work(11)
    with goodput.elastic_wait("scale_up"):
        work(7)
    goodput.slice_counts(4, 4, 4)
    train(10, 4)
    with goodput.checkpoint_save(13):
        work(5)
    with goodput.step(14):
        work(5)
        say("stepping")
        while True:
            work(5)
"""

# On jax: compilations, a recompilation, steps observed on the device, two of them still on it at the end.
OBSERVED = """
os.environ["JAX_PLATFORMS"] = "cpu"
import jax, jax.numpy as jnp
configure(integrations="jax")

@jax.jit
def train_step(state):
    state = jax.lax.fori_loop(0, 300, lambda _, x: jnp.tanh(x @ x), state)
    return state, state.sum()

with goodput.job():
    with goodput.training_prep():
        state = jnp.full((128, 128), 1e-3)
    for step, _ in goodput.steps(range(12)):
        state, loss = train_step(state)
        goodput.observe(loss)
        work(2)
    with goodput.step(12) as step:
        _, loss = train_step(jnp.full((96, 96), 1e-3))
        goodput.observe(loss)
    for step, _ in goodput.steps(range(4), start=13):
        state, loss = train_step(state)
        goodput.observe(loss)
    {last}
"""
KILLED_AT_ONCE = """
    slow, loss = jax.jit(lambda x: jax.lax.fori_loop(0, 10**9, lambda _, y: jnp.tanh(y @ y), x)).lower(
        state).compile(), None
    with goodput.step(17) as step:
        step.observe(slow(state))
    with goodput.step(18) as step:
        step.observe(slow(state))
    goodput.flush()
    die()
"""
ENDED_CLEANLY = """
    pass
loss.block_until_ready()
goodput.shutdown()
"""

# At a URL: a first life that is killed once a copy is there, a second one on another machine, with a spool of its own.
MIRRORED = """
import pathlib, tempfile
first, machine = int(sys.argv[3]), pathlib.Path(sys.argv[1]).parent / sys.argv[4]
machine.mkdir(exist_ok=True)
tempfile.tempdir = str(machine)
recorder = configure(directory="file://" + sys.argv[1])
with goodput.job():
    with goodput.training_prep():
        work(10)
    train(first, 12)
    with goodput.checkpoint_save(first + 11):
        work(5)
    train(first + 12, 3)
    if first == 0:
        goodput.flush()
        recorder._opened.mirror.send(recorder._account.journal)
        die()
goodput.shutdown()
"""


class Life(NamedTuple):
    """A process: its program, further arguments, and how it ends."""

    program: str
    arguments: tuple[str, ...] = ()
    killed: bool = True
    drive: Callable[[subprocess.Popen[str]], None] | None = None


def _announced(process: subprocess.Popen[str]) -> None:
    """A notice while it steps; it is killed after that."""
    assert process.stdout is not None
    assert process.stdout.readline() == "stepping\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "announced\n"
    process.kill()


def _living(process: subprocess.Popen[str]) -> None:
    """It stands in the middle of a step; the folder is kept as it is now, and only then is it killed."""
    assert process.stdout is not None
    assert process.stdout.readline() == "stepping\n"
    directory = Path(process.args[3])  # type: ignore[index, arg-type]
    shutil.copytree(directory / "run", directory.parent / "kept" / "run")
    process.kill()


WAITS = "say('stepping'); time.sleep(600)"
FOLDERS: dict[str, list[Life]] = {
    "live": [Life(FIRST_LIFE.format(last=WAITS), drive=_living)],
    "dead": [Life(FIRST_LIFE.format(last="die()")), Life(SECOND_LIFE)],
    "ended": [Life(ENDED, killed=False)],
    "sealed": [Life(SEALED, killed=False), Life(SNAPSHOT)],
    "disrupted": [Life(DISRUPTED, drive=_announced), Life(SECOND_LIFE)],
    "observed": [Life(OBSERVED.format(last=ENDED_CLEANLY), killed=False)],
    "observed-dead": [Life(OBSERVED.format(last=KILLED_AT_ONCE))],
    "mirrored": [Life(MIRRORED, ("0", "a")), Life(MIRRORED, ("12", "b"), killed=False)],
}
APART = 100.0  # seconds on the wall clock from one life to the next


def write(name: str, into: Path = HERE) -> None:
    """Run the lives of the folder `name`; leave the folder and what this version says of it in `into`."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "runs"
        for number, life in enumerate(FOLDERS[name]):
            program = PRELUDE + life.program
            command = [sys.executable, "-c", program, str(directory), str(number * APART), *life.arguments]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                if life.drive is not None:
                    life.drive(process)
            assert process.returncode == (-signal.SIGKILL if life.killed else 0), (name, number, process.returncode)
        kept = Path(place) / "kept"
        if kept.exists():
            directory = kept
        with tarfile.open(into / f"{name}.tar.xz", "w:xz") as archive:
            archive.add(directory / "run", "run", filter=_anonymous)
        for lock in directory.rglob("*.lock"):
            lock.unlink()  # as in the archive: without them nobody knows whether the processes are alive
        (into / f"{name}.json").write_text(json.dumps(answers(directory / "run"), indent=1) + "\n")


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """What git would not keep either; locks belong to the machine."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return None if entry.name.endswith(".lock") else entry


def answers(run: Path) -> dict[str, Any]:
    """What this version says of the run: at its end, and of two windows with a part left out."""
    from otel_goodput._journal.rundir import RunDirectory
    from otel_goodput.reports.run import RecordedRun

    recorded = RecordedRun(RunDirectory(run))
    at_the_end = recorded.report()
    began, now = at_the_end.totals.started_at, at_the_end.totals.at
    assert began is not None
    halves = [(began, (began + now) // 2), ((began + now) // 2, now)]
    left_out = [(began + NS // 50, began + NS // 10)]
    return {
        "report": at_the_end.to_json(),
        "questions": {"at": now, "windows": halves, "exclusions": left_out},
        "answers": recorded.report(at=now, windows=halves, exclusions=left_out).to_json(),
    }


if __name__ == "__main__":
    for wanted in sys.argv[1:] or FOLDERS:
        write(wanted)
        print(wanted)
