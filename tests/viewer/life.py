"""One attempt of a job with times of its own, as a process of its own: it ends well, or by SIGKILL in its last step."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import otel_goodput as goodput

MS = 1_000_000


def live(
    directory: str, name: str, begin: int, first: int, last: int, *, dies: bool, process: int = 0, processes: int = 1,
    evaluated: str = "eval", more: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    """Do the steps from `first` to `last`; `begin` in ns; `evaluated` names a custom phase."""
    recorder = goodput.Recorder(
        name, run_id=name, directory=directory, exporters="none", process_index=process, process_count=processes,
        **(more or {}),
    )  # fmt: skip
    now = begin

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
            os.kill(os.getpid(), signal.SIGKILL)
        with recorder.step(number, start_time=now, end_time=now + length):
            now += length
        if number % 10 == 9:
            phase(lambda number=number, **when: recorder.checkpoint_save(number, **when), 50 * MS)
        if number % 15 == 14:
            phase(lambda **when: recorder.custom(evaluated, **when), 40 * MS)
    job.__exit__(None, None, None)
    recorder.shutdown()


if __name__ == "__main__":
    live(**json.loads(sys.argv[1]))
