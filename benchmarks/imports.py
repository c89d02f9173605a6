"""What ``import otel_goodput`` costs a process, compared with the SDK that it needs."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from benchmarks import table
from benchmarks.rounds import ROOT, Samples, environment
from benchmarks.table import Row

TARGET_S = 0.1
STATEMENTS = {
    "nothing": "pass",
    "SDK": "import opentelemetry.sdk.trace, opentelemetry.sdk.metrics",
    "ours": "import otel_goodput",
    "all": "import otel_goodput; otel_goodput.configure",
}
GROUP = "Import: wall time of a process, bytecode cached"


def _run(statement: str) -> tuple[float, int]:
    """Seconds of a process that runs `statement`, and the number of modules that it then has."""
    code = f"import sys; {statement}; sys.stdout.write(str(len(sys.modules)))"
    began = time.perf_counter()
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(), check=True, capture_output=True, text=True
    )
    return time.perf_counter() - began, int(out.stdout)


def measure(samples: Samples, *, fast: bool) -> list[Row]:
    modules = {name: _run(statement)[1] for name, statement in STATEMENTS.items()}  # writes the bytecode too
    for _ in range(3 if fast else 15):
        for name, statement in STATEMENTS.items():
            samples.add(f"import {name}", _run(statement)[0])
    ours, whole, sdk, nothing = (samples.values(f"import {name}") for name in ("ours", "all", "SDK", "nothing"))
    above = statistics.median([a - b for a, b in zip(ours, nothing, strict=True)])
    rows = [
        Row(
            GROUP,
            "otel_goodput, above an interpreter that imports nothing",
            table.compared(samples.ratios("import ours", "import nothing")),
            f"{table.seconds(above)}, {modules['ours'] - modules['nothing']} modules",
            f"< {table.seconds(TARGET_S)}",
            above < TARGET_S,
        ),
        Row(
            GROUP,
            "opentelemetry.sdk.trace and .metrics, above nothing",
            table.compared(samples.ratios("import SDK", "import nothing")),
            f"{table.seconds(statistics.median([a - b for a, b in zip(sdk, nothing, strict=True)]))}, "
            f"{modules['SDK'] - modules['nothing']} modules",
        ),
    ]
    extra = statistics.median([a - b for a, b in zip(whole, sdk, strict=True)])
    rows.append(
        Row(
            GROUP,
            "otel_goodput and the first name used (`otel_goodput.configure`), above the SDK",
            table.compared(samples.ratios("import all", "import SDK")),
            f"{'-' if extra < 0 else ''}{table.seconds(abs(extra))}, {modules['all'] - modules['SDK']} modules",
        )
    )
    return rows
