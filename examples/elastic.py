"""Elastic training: slices are lost and return, training continues with the rest, and the report shows the time.

One process and four simulated slices of two devices each, all on this CPU; the step is data-parallel over the active
ones. When a slice is lost mid-step, the others agree to continue without it, the last snapshot is distributed over
them, and the steps since then are repeated. When the slice returns, the state moves onto all slices. Copy ``train()``;
the rest simulates the platform and compares the report with this process's own clock. Exit status 1 if they differ.
"""
# ruff: noqa: E402

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from typing import Any

SLICES, DEVICES = 4, 8
# Set before jax is imported. If a flag is repeated, the last one counts.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}".strip()
# Each step waits for its results, so the host's clock is exact. Marks would be too late for the stopwatch's tolerance,
# because all of these devices share a few cores.
os.environ.setdefault("OTEL_GOODPUT_DEVICE_CLOCK", "host")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import otel_goodput as goodput

BATCH, WIDTH = 960, 64  # the same batch for any number of slices: 2, 4, 6 and 8 devices divide it evenly
NS = 1_000_000_000
Weights = Any


class SliceDown(Exception):
    """A slice was lost while it computed. On a real platform jax raises an error out of the step."""


class Platform:
    """Simulates the platform: loses a slice in each step of `lose_at` and returns one at each step of `regain_at`."""

    def __init__(self, lose_at: list[int], regain_at: list[int], seed: int) -> None:
        self.lose_at, self.regain_at = lose_at.copy(), regain_at.copy()
        self.random = random.Random(seed)
        self.available = list(range(SLICES))
        self.ready = 0.0

    def look(self, step: int) -> None:
        """Call before `step`: slices that return are visible at once but take a while to be ready."""
        while self.regain_at and step >= self.regain_at[0]:
            self.regain_at.pop(0)
            back = self.random.choice([number for number in range(SLICES) if number not in self.available])
            self.change(sorted([*self.available, back]), f"step {step}: slice {back} is back")

    def strike(self, step: int) -> None:
        """Call in `step`: raises SliceDown if a slice is lost. The others take a while to detect it."""
        if self.lose_at and step >= self.lose_at[0]:
            self.lose_at.pop(0)
            lost = self.random.choice(self.available)
            self.change([number for number in self.available if number != lost], f"step {step}: slice {lost} is lost")
            raise SliceDown(f"slice {lost}")

    def change(self, available: list[int], news: str) -> None:
        print(f"  {news}, {len(available)} of {SLICES} are available", flush=True)
        self.available, self.ready = available, time.monotonic() + self.random.uniform(0.2, 0.4)

    def wait(self) -> None:
        """Wait until all available slices are ready and agree on who takes part."""
        while (left := self.ready - time.monotonic()) > 0:
            time.sleep(left)


class Stopwatch:
    """What this process measures with its own clock.

    Attributes:
        took: (name or step, ns inside it, ns around it) of the phases; the true duration is between the two.
        slices: (when, ns, active, available), at each change.
        losses: of each step, as often as it completed.
    """

    def __init__(self) -> None:
        self.took: list[tuple[str | int, int, int]] = []
        self.slices: list[tuple[int, int, int]] = []
        self.losses: defaultdict[int, list[float]] = defaultdict(list)

    @contextmanager
    def timed(self, name: str | int, phase: AbstractContextManager[object]) -> Iterator[None]:
        """Enter `phase` and measure how long it took."""
        before = time.monotonic_ns()
        begun = ended = 0
        try:
            with phase:
                begun = time.monotonic_ns()
                try:
                    yield
                finally:
                    ended = time.monotonic_ns()
        finally:
            self.took.append((name, ended - begun, time.monotonic_ns() - before))

    def slice_counts(self, active: int, available: int) -> None:
        """Record that from now on `active` slices form the mesh, and `available` slices are up."""
        goodput.slice_counts(active, available, SLICES)
        self.slices.append((time.monotonic_ns(), active, available))


def train_step(weights: Weights, x: jax.Array) -> tuple[Weights, jax.Array]:
    """Do one update; return the new weights and the loss before it."""

    def loss(weights: Weights) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ weights["in"]) @ weights["out"] - x.sum(axis=1)) ** 2)

    error, slope = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.01 * g, weights, slope), error


def lay_out(devices: np.ndarray, weights: Weights) -> tuple[Weights, Callable[..., Any], NamedSharding]:
    """Return the weights on `devices`, the step compiled for them, and the sharding of a batch."""
    mesh = Mesh(devices.flatten(), ("data",))
    whole, divided = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    weights = jax.device_put(weights, whole)
    batch = jax.ShapeDtypeStruct((BATCH, WIDTH), np.float32, sharding=divided)
    return weights, jax.jit(train_step, out_shardings=whole).lower(weights, batch).compile(), divided


def train(platform: Platform, watch: Stopwatch, steps: int, save_every: int, seed: int) -> None:
    """Run the whole job, with each part in its phase."""
    with goodput.accelerator_init():
        devices = np.array(jax.devices()).reshape(SLICES, -1)
    with goodput.training_prep():
        chance = np.random.default_rng(seed)
        first = {"in": chance.normal(size=(WIDTH, 512)) / 8, "out": chance.normal(size=512) / 23}
        saved_step, saved = -1, {name: weight.astype(np.float32) for name, weight in first.items()}
        active = platform.available
        weights, step_function, divided = lay_out(devices[active], saved)
    watch.slice_counts(len(active), len(active))

    step = 0
    while step < steps:
        platform.look(step)
        if len(platform.available) > len(active):
            watch.slice_counts(len(active), len(platform.available))
            with watch.timed("elastic_scale_up", goodput.elastic_wait("scale_up")):
                platform.wait()
            with watch.timed("elastic_reinitialization", goodput.elastic_reinit()):
                active = platform.available
                weights, step_function, divided = lay_out(
                    devices[active], weights
                )  # current weights: nothing is repeated
            watch.slice_counts(len(active), len(active))
        with goodput.data_loading():  # a batch depends only on the step, so a repeated step gets the same one
            x = np.random.default_rng([seed, step]).normal(size=(BATCH, WIDTH)).astype(np.float32)
            batch = jax.device_put(x, divided)
        try:
            with watch.timed(step, goodput.step(step)):
                # Wait for all devices: the loss comes from one of them, while others may still be working.
                weights, loss = jax.block_until_ready(step_function(weights, batch))
                error = float(loss)
                platform.strike(step)
        except SliceDown:  # the interrupted step has not completed
            active = platform.available
            watch.slice_counts(len(active), len(active))
            with watch.timed("elastic_slice_down", goodput.elastic_wait("slice_down")):
                platform.wait()
            # The restore marks the rollback as intended: the steps since then are lost.
            restore = goodput.checkpoint_restore(saved_step if saved_step >= 0 else None)
            with watch.timed("elastic_reinitialization", goodput.elastic_reinit()), restore:
                weights, step_function, divided = lay_out(devices[active], saved)
            step = saved_step + 1
            continue
        watch.losses[step].append(error)
        if step % save_every == save_every - 1:
            with watch.timed("checkpoint_save", goodput.checkpoint_save(step)):
                saved_step, saved = (
                    step,
                    jax.tree.map(np.array, weights),
                )  # in the host's memory, which survives a lost slice
        step += 1


def checks(report: dict[str, Any], watch: Stopwatch) -> Iterator[tuple[bool, str]]:
    """Return (whether it holds, what) for each check of the report against the measurements."""
    total, elapsed = sum(round(value * NS) for value in report["seconds"].values()), round(report["elapsed_s"] * NS)
    yield total == elapsed, f"the categories sum to the elapsed time: {total:,} ns of {elapsed:,} ns"

    # Going backwards: an execution is lost if the run later went back to its step or to an earlier one.
    steps = [name for name, *_ in watch.took if isinstance(name, int)]
    times: defaultdict[str, list[tuple[int, int]]] = defaultdict(list, productive=[], wasted_progress=[])
    lowest = sys.maxsize
    for name, inside, around in reversed(watch.took):
        if isinstance(name, int):
            kept, lowest = name < lowest, min(lowest, name)
            name = "productive" if kept else "wasted_progress"
        times[name].append((inside, around))
    for name, each in times.items():
        least, most = (sum(pair[at] for pair in each) / NS for at in (0, 1))
        value = report["elapsed_s"] if name == "elapsed" else report["seconds"].get(name, 0.0)
        yield least <= value <= most, f"{name} {value:.6f} s, by the stopwatch {least:.6f} s to {most:.6f} s"

    # Going back to the failed step itself loses no progress, so it is not a rollback.
    rollbacks = sum(after < before for before, after in pairwise(steps))
    reported = report["steps"]["kept"], report["steps"]["lost"], report["disruption_reasons"].get("rollback", 0)
    seen = len(times["productive"]), len(times["wasted_progress"]), rollbacks
    yield reported == seen, "steps kept {}, lost {}, rollbacks {}; seen {}, {}, {}".format(*reported, *seen)

    known = watch.slices[-1][0] - watch.slices[0][0]
    for at, state in enumerate(("stepping", "available"), 1):
        mean = sum(now[at] / SLICES * (then[0] - now[0]) / known for now, then in pairwise(watch.slices))
        value = (report["slice_efficiency"] or {}).get(state, 0.0)
        yield abs(value - mean) < 0.01 * mean, f"slices {state} {value:.2%}, by the stopwatch {mean:.2%}"

    # The batch is the same for any number of devices; only the order of the sums over it differs.
    apart = [abs(again / losses[0] - 1) for losses in watch.losses.values() for again in losses[1:]]
    yield max(apart, default=0.0) < 1e-4, f"{len(apart)} losses seen again, at most {max(apart, default=0.0):.1e} apart"
    before, after = watch.losses[0][-1], watch.losses[max(watch.losses)][-1]
    yield after < before, f"loss {before:.3f} at first, {after:.3f} at last"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120, help="steps of training, at least 20 (default: 120)")
    parser.add_argument("--save-every", type=int, default=10, help="steps from a snapshot to the next (default: 10)")
    parser.add_argument("--lose-at", type=int, nargs="+", metavar="STEP", help="lose one in each (default: two)")
    parser.add_argument("--regain-at", type=int, nargs="*", metavar="STEP", help="have one back at each (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of model, data and what happens to slices (default: 1)")
    parser.add_argument("--directory", help="keep the journal and the traces there (default: keep nothing)")
    args = parser.parse_args()
    if args.steps < 20 or args.save_every < 1:
        parser.error("--steps must be at least 20, --save-every at least 1")
    if args.lose_at is None:
        chance = random.Random(args.seed)
        args.lose_at = [args.steps * share // 100 for share in (chance.randint(25, 35), chance.randint(60, 70))]
    if args.regain_at is None:
        args.regain_at = [lost + args.steps // 6 for lost in args.lose_at if lost + args.steps // 6 < args.steps]
    args.lose_at.sort()
    args.regain_at.sort()
    there = SLICES
    for step, lost in sorted([*((n, False) for n in args.regain_at), *((n, True) for n in args.lose_at)]):
        there += -1 if lost else 1
        if not (0 <= step < args.steps and 0 < there <= SLICES):
            parser.error(f"--lose-at, --regain-at: {there} of {SLICES} slices in step {step} of {args.steps}")
    return args


def main() -> int:
    args = arguments()
    jax.config.update("jax_platforms", "cpu")
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as passing:
        goodput.configure(
            "elastic", run_id=f"elastic-{time.time_ns()}", directory=args.directory or passing, exporters="file"
        )
        with watch.timed("elapsed", goodput.job()):
            train(Platform(args.lose_at, args.regain_at, args.seed), watch, args.steps, args.save_every, args.seed)
        watch.slices.append((time.monotonic_ns(), 0, 0))
        goodput.shutdown()  # before the report, so that it includes figures that arrive late
        report = goodput.report()
    if report is None:
        return 0  # OTEL_SDK_DISABLED: the job runs anyway
    print(f"\n{report}")
    results = list(checks(report.to_json(), watch))
    for holds, text in results:
        print(f"{'ok  ' if holds else 'FAIL'}  {text}")
    return 0 if all(holds for holds, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
