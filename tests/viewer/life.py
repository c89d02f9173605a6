"""One attempt of a job with times of its own, as a process of its own: it ends well, or by SIGKILL in its last step."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import otel_goodput as goodput

MS = 50_000  # times are a twentieth of what they are called, so that the process waits little


def live(
    directory: str, name: str, first: int, last: int, *, dies: bool, process: int = 0, processes: int = 1,
    evaluated: str = "eval", more: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    """Do the steps from `first` to `last`; `evaluated` names a custom phase."""
    recorder = goodput.Recorder(
        name, run_id=name, directory=directory, exporters="none", process_index=process, process_count=processes,
        role=f"part {process}" if processes > 1 else None,  # so that they never step together, however they are started
        **(more or {}),
    )  # fmt: skip
    now = time.time_ns()

    def phase(opened: Any, length: int) -> None:
        nonlocal now
        with opened(start_time=now, end_time=now + length):
            now += length

    job = recorder.job(start_time=now)
    job.__enter__()
    phase(recorder.training_prep, 300 * MS)
    for number in range(first, last + 1):
        phase(recorder.data_loading, 10 * MS + number % 7 * MS)
        length = 80 * MS + number * 7919 % 31 * MS
        if dies and number == last:
            recorder.step(number, start_time=now).__enter__()
            recorder.flush()
            time.sleep(max(0, now - time.time_ns()) / 1e9)
            os.kill(os.getpid(), signal.SIGKILL)
        with recorder.step(number, start_time=now, end_time=now + length):
            now += length
        if number % 10 == 9:
            phase(lambda number=number, **when: recorder.checkpoint_save(number, **when), 50 * MS)
        if number % 15 == 14:
            phase(lambda **when: recorder.custom(evaluated, **when), 40 * MS)
    time.sleep(max(0, now - time.time_ns()) / 1e9)  # the end of the job is now
    job.__exit__(None, None, None)
    recorder.shutdown()


if __name__ == "__main__":
    live(**json.loads(sys.argv[1]))
