"""A store that hangs costs neither training nor the end of the process time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import warm

from otel_goodput._live.stores import PATIENCE_S

TESTS = Path(__file__).parent.parent
RANK = """
import json, sys, time
from otel_goodput._live import channels, clock_exchange, ranks
from processes.shared import Shared
rank, folder = int(sys.argv[1]), sys.argv[2]
ranks.EVERY_S, ranks.FIRST_S = 0.1, 0.05
store, works, hangs = Shared(), Shared._call, False

def call(self):
    if hangs:
        time.sleep(20)
    works(self)

Shared._call = call
channels.current_store = clock_exchange.current_store = lambda before: store
import otel_goodput as goodput
goodput.configure("hangs", run_id="run", directory=folder, exporters="none", process_index=rank, process_count=2)
longest = 0
with goodput.job():
    for number in range(150):
        while number == 50 and not store.calls:
            time.sleep(0.01)
        hangs = number >= 50
        began = time.monotonic()
        with goodput.step(number):
            pass
        longest = max(longest, time.monotonic() - began)
        time.sleep(0.002)
calls, began = store.calls, time.monotonic()
goodput.shutdown()
print(json.dumps({"longest": longest, "end": time.monotonic() - began, "calls": calls}), flush=True)
"""


def test_neither_steps_nor_the_end_wait_for_a_store_that_hangs(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OTEL_GOODPUT_STRICT": ""}
    pipe, processes = subprocess.PIPE, []
    for rank in range(2):
        command = [sys.executable, "-c", RANK, str(rank), str(tmp_path / str(rank))]
        processes.append(warm.Process(command, env=environment, stdout=pipe, stderr=pipe, text=True))
    for process in processes:
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        measured: dict[str, Any] = json.loads(output)
        assert measured["calls"] > 0, "the store was in use"
        # Whoever waits for it does so for PATIENCE_S, and the end would take twice as long: it reads and it writes.
        assert measured["longest"] < PATIENCE_S - 1 and measured["end"] < 2 * PATIENCE_S - 2, measured
