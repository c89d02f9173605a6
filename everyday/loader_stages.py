"""Where the time goes in data loaders, against a witness: loaders whose every stage takes as long as is known.

Each sleep of a stage writes down itself when it began and ended, in whatever process it is, and the loop writes down
when it waited for which batch. What the package says must be within 5 % of that, or 1 % of the elapsed time: all time
of each stage, and that in which the loop waited for it.

With a name of a case and a folder, it is the program itself.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from everyday.lateness import Lateness

NAME = "everyday.loader_stages"
PATIENCE_S = 240.0
TOLERANCE, SMALL = 0.05, 0.01
BATCH, BATCHES = 8, 24
FETCH_S, TRANSFORM_S, COLLATE_S, STEP_S = 0.003, 0.005, 0.012, 0.02
SLOW = 1  # the worker that is slow in one case, by so much
SLOWER = 4
_MADE = ("fetch", "transform", "collate")


class Case(NamedTuple):
    workers: int = 0
    start: str | None = None
    persistent: bool = False
    iterable: bool = False
    batched: bool = True
    passes: int = 1
    slow: bool = False  # one worker is
    killed: bool = False  # one worker is, once there were some batches
    ordered: bool = True
    grain: str = ""  # the kind of pipeline


CASES = {
    "no workers": Case(passes=2),
    "forked workers": Case(2, "fork", passes=2),
    "spawned workers that stay": Case(2, "spawn", persistent=True, passes=2),
    "an iterable dataset": Case(2, "fork", iterable=True),
    "an iterable dataset without workers": Case(iterable=True),
    "single samples": Case(2, "fork", batched=False),
    "in any order": Case(3, "fork", slow=True, ordered=False),
    "a slow worker": Case(3, "fork", slow=True, persistent=True, passes=2),
    "grain, no threads": Case(grain="plain"),
    "grain, one thread": Case(grain="thread"),
    "grain, two processes": Case(2, grain="processes"),
    "grain.DataLoader": Case(grain="loader"),
    "a killed worker": Case(2, "fork", killed=True),
}


spent: list[bytes] = []  # of this process, and not written yet


def spend(stage: str, batch: int, seconds: float) -> None:
    """Sleep, and write down for which batch and from when to when."""
    begin = time.monotonic_ns()
    time.sleep(seconds)
    spent.append(f"{stage} {batch} {begin} {time.monotonic_ns()}\n".encode())
    if stage == "collate":
        file = os.open(os.environ["EVERYDAY_STAGES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, b"".join(spent))
        os.close(file)
        spent.clear()


def worker() -> int:
    import torch.utils.data

    info = torch.utils.data.get_worker_info()
    return 0 if info is None else info.id


class Transform:
    def __init__(self, slow: bool, each: int) -> None:
        self.slow, self.each = slow, each

    def __call__(self, sample: int) -> int:
        spend("transform", sample // self.each, TRANSFORM_S * (SLOWER if self.slow and worker() == SLOW else 1))
        return sample


class Samples:
    def __init__(self, transform: Transform, each: int) -> None:
        self.transform, self.each = transform, each

    def __len__(self) -> int:
        return BATCH * BATCHES

    def __getitem__(self, index: int) -> int:
        spend("fetch", index // self.each, FETCH_S)
        return self.transform(index)


def stream(transform: Transform, count: int) -> Iterator[int]:
    mine = range(worker(), BATCHES, max(1, count))
    for batch in mine:
        for index in range(BATCH * batch, BATCH * (batch + 1)):
            spend("fetch", batch, FETCH_S)
            yield transform(index)


def collate(each: int, samples: Any) -> Any:
    first = samples[0] if isinstance(samples, list) else samples
    spend("collate", first // each, COLLATE_S)
    return samples


class Source:
    """A source of Grain's."""

    def __len__(self) -> int:
        return BATCH * BATCHES

    def __getitem__(self, index: int) -> int:
        spend("fetch", index // BATCH, FETCH_S)
        return index


def grain_of(kind: str) -> Any:
    import grain
    import grain.python
    from absl import flags

    flags.FLAGS(["everyday"])
    if kind == "loader":

        class Augment(grain.python.MapTransform):  # type: ignore[misc]
            def map(self, sample: int) -> int:
                return Transform(False, BATCH)(sample)

        return grain.python.DataLoader(
            data_source=Source(),
            sampler=grain.python.SequentialSampler(BATCH * BATCHES, grain.python.NoSharding()),
            operations=[Augment(), grain.python.Batch(BATCH, batch_fn=partial(collate, BATCH))],
            read_options=grain.python.ReadOptions(num_threads=0, prefetch_buffer_size=0),
        )
    data = grain.MapDataset.source(Source()).map(Transform(False, BATCH))
    data = data.batch(BATCH, batch_fn=partial(collate, BATCH))
    threads = int(kind == "thread")
    batches = data.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads))
    if kind == "processes":
        return batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
    return batches


def loader_of(case: Case) -> Any:
    if case.grain:
        return grain_of(case.grain)
    from torch.utils.data import DataLoader, IterableDataset

    each = BATCH if case.batched else 1
    transform = Transform(case.slow, each)
    data: Any = Samples(transform, each)
    if case.iterable:

        class Stream(IterableDataset):  # type: ignore[type-arg, misc]
            def __init__(self) -> None:
                self.transform = transform

            def __iter__(self) -> Iterator[int]:
                return stream(self.transform, case.workers)

        data = Stream()
    return DataLoader(
        data,
        batch_size=BATCH if case.batched else None,
        num_workers=case.workers,
        multiprocessing_context=case.start,
        persistent_workers=case.persistent,
        collate_fn=partial(collate, each),
        **({} if case.ordered else {"in_order": False}),
    )


def program(name: str, folder: str) -> None:
    import otel_goodput as goodput

    case = CASES[name]
    goodput.configure("stages", run_id="stages", directory=folder, exporters="none")
    loader = loader_of(case)
    each = BATCH if case.batched else 1
    waits = []
    with goodput.job():
        for _ in range(case.passes):
            last = time.monotonic_ns()
            try:
                for _, batch in goodput.steps(loader):
                    first = batch[0] if case.batched else batch
                    waits.append((int(first) // each, last, time.monotonic_ns()))
                    time.sleep(STEP_S / (1 if case.batched else BATCH))
                    last = time.monotonic_ns()
                    if case.killed and len(waits) == BATCHES // 2:
                        os.kill(worker_ids()[0], signal.SIGKILL)
            except RuntimeError as error:
                if not case.killed or "DataLoader worker" not in str(error):
                    raise
    goodput.shutdown()
    print(json.dumps(waits))


def worker_ids() -> list[int]:
    import multiprocessing

    return [one.pid for one in multiprocessing.active_children() if one.pid is not None]


# --- the check --------------------------------------------------------------------------------------------------------


def check() -> str:
    """Compare all cases; returns "as the witness says", or what is wrong."""
    if importlib.util.find_spec("torch") is None:
        return "not compared: torch is not installed"
    wrong = {name: text for name in CASES if (text := "; ".join(wrong_in(name)))}
    return "; ".join(f"{name}: {text}" for name, text in wrong.items()) or "as the witness says"


def wrong_in(name: str) -> Iterator[str]:
    case = CASES[name]
    with tempfile.TemporaryDirectory() as place:
        with Lateness() as lateness:
            waits, report, stages = perform(name, Path(place))
        late = lateness.of(len(waits)) / 1e9
    loader = report.get("loader")
    if loader is None:
        yield "nothing was timed"
        return
    if case.killed:  # what it had made and nobody took is not known
        if loader["batches"] != len(waits):
            yield f"{loader['batches']} batches of {len(waits)}"
        return
    elapsed = report["elapsed_s"]
    waited: dict[str, float] = defaultdict(float)
    for stage, batch, begin, end in stages:
        for which, since, until in waits:
            if which == batch:
                waited[stage] += max(0, min(end, until) - max(begin, since)) / 1e9
    whole: dict[str, float] = defaultdict(float)
    for stage, _, begin, end in stages:
        whole[stage] += (end - begin) / 1e9
    all_waits = sum(until - since for _, since, until in waits) / 1e9
    ours = loader["stages"]
    pairs = {f"all {stage}": (ours[stage]["exposed_s"] + ours[stage]["hidden_s"], whole[stage]) for stage in _MADE}
    pairs |= {f"exposed {stage}": (ours[stage]["exposed_s"], waited[stage]) for stage in _MADE}
    rest = sum(ours[stage]["exposed_s"] for stage in ("transfer", "queue"))
    pairs |= {"other waiting": (rest, all_waits - sum(waited.values())), "waiting": (loader["waited_s"], all_waits)}
    for what, (figure, true) in pairs.items():
        if os.environ.get("EVERYDAY_VERBOSE"):
            print(f"{name}: {what} {figure:.3f} s, in truth {true:.3f} s, {late:.3f} s late, of {elapsed:.1f}")
        if abs(figure - true) > max(TOLERANCE * true, SMALL * elapsed) + late:
            yield f"{what} is {figure:.3f} s, in truth {true:.3f} s"
    if loader["slow_worker"] != (SLOW if case.slow and case.ordered else None):
        yield f"the slow worker is {loader['slow_worker']}"


def perform(name: str, folder: Path) -> tuple[list[Any], dict[str, Any], list[tuple[str, int, int, int]]]:
    """Run a case; return the waits of its loop, its report, and the stages that were spent."""
    written = folder / "spent"
    root = Path(__file__).parents[1]
    environment = {**os.environ, "EVERYDAY_STAGES": str(written), "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", NAME, name, str(folder)]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-4000:]}")
    asking = [sys.executable, "-m", "otel_goodput", "report", str(folder), "--run", "stages", "--json"]
    report = json.loads(subprocess.run(asking, env=environment, capture_output=True, text=True, check=True).stdout)
    lines = [line.split() for line in written.read_text().splitlines()]
    stages = [(stage, int(batch), int(begin), int(end)) for stage, batch, begin, end in lines]
    return json.loads(done.stdout.splitlines()[-1]), report, stages


if __name__ == "__main__":
    if len(sys.argv) > 2:
        program(*sys.argv[1:])
    else:
        CASES = {name: case for name, case in CASES.items() if name in sys.argv[1:] or not sys.argv[1:]}
        print(check())
