"""``python -m benchmarks``: measures everything side by side, prints one table and writes RESULTS.md."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")
PLACE = 4  # of what describes the machine: when, where, which system and which Python
PREFACE = """\
# What recording costs

Written by `make bench`. Every variant runs in a process of its own, in turn with the others (A B C A B C …); a ratio is
the median over the rounds of what was measured side by side, with its range in parentheses. Ratios carry over to other
machines, absolute medians less so. On a busy machine both suffer: look at the load below.

The SDK's two spans alone (`start_as_current_span` for the data load and the step, same processor, same exporter that
does nothing) are the yardstick of a step; otel_goodput does the accounting and writes the journal besides. Of
ml-goodput-measurement all runs but the network: Google's client is stubbed.

What watching jax costs is measured on jax's CPU backend, held to one core as its device; what taking the time costs is
taken off. A bare sleep is the yardstick of a thread that wakes up by itself: that alone is costly on virtual machines.
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What recording costs.")
    parser.add_argument("--fast", action="store_true", help="a smoke test of less than a minute; RESULTS.md stays")
    parser.add_argument(
        "--only",
        default="",
        metavar="LIST",
        help="some of step,growth,imports,journal,ranks,exchange,integrations,watching; RESULTS.md stays as it is",
    )
    parser.add_argument("--write", action="store_true", help="with --only: their sections in RESULTS.md are new")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every value, for pyperf")
    options = parser.parse_args()
    try:
        import pyperf  # noqa: F401
    except ImportError:
        print("python -m benchmarks needs pyperf: `make bench`, or pip install --group bench", file=sys.stderr)
        return 1
    logging.basicConfig(level=logging.WARNING)

    from benchmarks import (
        dropin,
        exchange,
        growth,
        imports,
        integrations,
        journal,
        machine,
        overview,
        ranks,
        step,
        table,
        watching,
    )
    from benchmarks.rounds import Samples

    scenarios: dict[str, Callable[..., list[table.Row]]] = {
        "step": step.measure,
        "growth": growth.measure,
        "imports": imports.measure,
        "journal": journal.measure,
        "overview": overview.measure,
        "ranks": ranks.measure,
        "exchange": exchange.measure,
        "dropin": dropin.measure,
        "integrations": integrations.measure,
        "watching": watching.measure,
    }
    chosen = [name for name in options.only.split(",") if name] or list(scenarios)
    if unknown := set(chosen) - set(scenarios):
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(scenarios)}")
    described = machine.describe()
    samples, rows = Samples(), []
    for name in chosen:
        began = time.monotonic()
        print(f"{name} …", end=" ", file=sys.stderr, flush=True)
        rows += scenarios[name](samples, fast=options.fast)
        print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    print("\n".join(f"{what}: {value}" for what, value in described), end="\n\n")
    print(table.as_text(rows), end="")
    if options.json is not None:
        samples.suite().dump(str(options.json), replace=True)
    if not options.fast and not options.only:
        on = "\n".join(f"- {what}: {value}" for what, value in described)
        RESULTS.write_text(f"{PREFACE}\n{on}\n{table.as_markdown(rows)}", encoding="utf-8")
        print(f"\nwritten to {RESULTS.name}", file=sys.stderr)
    elif options.write and not options.fast:
        note = f"Measured by itself: {'; '.join(f'{what} {value}' for what, value in described[:PLACE])}."
        RESULTS.write_text(table.with_sections(RESULTS.read_text(encoding="utf-8"), rows, note), encoding="utf-8")
        print(f"\nits sections are in {RESULTS.name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
