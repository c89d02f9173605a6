"""Runs the programs, compares their figures with the witness's, and writes the results."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from everyday import (
    far_ranks,
    hangs,
    loader_stages,
    ranks,
    ready_batches,
    recipes,
    signatures,
    torch_profile,
    torch_store,
)
from everyday.catalogue import PROGRAMS
from everyday.trial import TOLERANCE, Program, Result, perform

RESULTS = Path(__file__).with_name("RESULTS.md")
PACKAGES = (
    "jax",
    "jaxlib",
    "optax",
    "orbax-checkpoint",
    "flax",
    "equinox",
    "keras",
    "lightning",
    "pytorch-lightning",
    "torch",
    "accelerate",
    "transformers",
    "trl",
    "grain",
    "opentelemetry-sdk",
)
HEAD = """# Results of `make everyday`

`make everyday` writes this file. Each program uses this package as its users do (`job()`, `step(n)` or `steps(loader)`,
and nothing for the device). A witness measures the same program independently: it reads the clock, and a thread of its
own blocks on the device's outputs. Goodput and the time of every category must be within {tolerance:.0%} of the
witness's, or 1% of the elapsed time. Added to that is the measuring error: another process measures how late this
machine wakes a sleeping process, and the witness measures how long it takes to write a reading (there are three writes
between the witness's reading and this package's).

Programs whose names end with `.py` are those of docs/recipes.md. They have no witness: they must run as printed there
and leave one run. Names that begin with `everyday.stand_ins` are modules that the tests use instead of other packages:
their classes and functions must take the same arguments as the real ones. `everyday.torch_store` checks what ranks
exchange through the store of torch.distributed; the tests check it with that of jax.distributed.
`everyday.torch_profile` takes traces by PyTorch's profiler, which must not disturb the program's.
`everyday.ready_batches` looks how many batches PyTorch's and Grain's workers have ready; `everyday.loader_stages`
compares the time of each stage of loaders with what was slept in it. `everyday.ranks`
compares the account of jobs of 8 ranks (PyTorch, gloo) and 4 (jax.distributed), of which one loads slowly, with what
the ranks wrote down themselves. In `everyday.far_ranks` the ranks share only that store, their clocks are 10 minutes
apart, and the leader is stopped, goes on, and is killed: its deputy has to publish the right figures. In
`everyday.hangs`, one of 8 ranks (PyTorch, gloo) stands still, each time another one in another way; the stacks must
name it and its line.

{machine}

| program | goodput | by the witness | measuring error, of the elapsed time | seconds | |
| --- | ---: | ---: | ---: | ---: | --- |
"""


def missing(program: Program) -> list[str]:
    """The packages that a program needs and that are not installed."""
    return [name for name in program.needs if importlib.util.find_spec(name.partition(".")[0]) is None]


def machine() -> str:
    """The machine, and the versions of the packages."""
    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    where = f"{platform.system()} {platform.machine()}, {cores} cores, Python {platform.python_version()}"
    return f"{time.strftime('%Y-%m-%d')}, {where}: {', '.join(versions)}."


def rows(name: str, program: Program, folder: Path) -> Iterator[tuple[str, bool]]:
    """A line of the table for each run of a program, and whether its figures are right."""
    lacking = missing(program)
    if lacking:
        yield f"| {name} | | | | | not run: {', '.join(lacking)} is not installed |", True
        return
    began = time.monotonic()
    try:
        results = perform(program, folder)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        yield f"| {name} | | | | {time.monotonic() - began:.1f} | failed |", False
        return
    for result in results:
        yield _row(name, result, time.monotonic() - began), not result.wrong()


def _row(name: str, result: Result, seconds: float) -> str:
    goodput = result.report["goodput"]
    share = "unknown" if goodput is None else f"{goodput:.2%}"
    verdict = "; ".join(result.wrong()) or "right"
    true = result.truth
    return f"| {name} | {share} | {true.goodput:.2%} | {result.late / true.elapsed:.2%} | {seconds:.1f} | {verdict} |"


def recipe(name: str, folder: Path) -> tuple[str, bool]:
    """The line of a recipe, which has no witness, and whether it ran."""
    lacking = recipes.lacking(recipes.RECIPES[name])
    if lacking:
        return f"| {name} | | | | | not run: {', '.join(lacking)} is not installed |", True
    began = time.monotonic()
    try:
        recipes.perform(name, folder)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return f"| {name} | | | | {time.monotonic() - began:.1f} | failed |", False
    return f"| {name} | | | | {time.monotonic() - began:.1f} | runs |", True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs and recipes (default: all)")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}, if all were run")
    options = parser.parse_args()
    unknown = set(options.names) - {*PROGRAMS, *recipes.RECIPES}
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join((*PROGRAMS, *recipes.RECIPES))}")
    lines, good = [], True
    for name in options.names or (*PROGRAMS, *recipes.RECIPES):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            for line, right in rows(name, PROGRAMS[name], folder) if name in PROGRAMS else [recipe(name, folder)]:
                print(line, flush=True)
                lines.append(line)
                good = good and right
    checks = {name: partial(signatures.compare, name) for name in signatures.STAND_INS}
    checks |= {
        one.NAME: one.check
        for one in (torch_store, torch_profile, ready_batches, loader_stages, ranks, far_ranks, hangs)
    }
    for name, check in () if options.names else checks.items():
        compared = check()
        print(name, compared, flush=True)
        lines.append(f"| {name} | | | | | {compared} |")
        good = good and compared.startswith(("as ", "not compared"))
    if options.write and not options.names:
        RESULTS.write_text(HEAD.format(tolerance=TOLERANCE, machine=machine()) + "\n".join(lines) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
