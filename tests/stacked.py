"""Stacks of the ranks of a job that was never there."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from otel_goodput._journal import records
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.stacks import DUMP, MOVED_ON, StacksFile
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.stacks import Standstill, standstill

NS = 1_000_000_000
C10D = "/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
ALL_REDUCE = ((C10D, 2957, "all_reduce"), ("/app/train.py", 88, "train_step"), ("/app/train.py", 131, "main"))
BARRIER = ((C10D, 4000, "barrier"), ("/app/train.py", 95, "save"))
LOAD = (("/app/dataset.py", 41, "read_shard"), ("/app/train.py", 120, "main"))
POLL = (("/app/sync.py", 9, "poll"), ("/app/train.py", 88, "main"))


class Ranks:
    """The stacks of a job, made for the test."""

    def __init__(self, folder: Path) -> None:
        self.run = RunDirectory(folder / "job")
        self.run.create({"run_id": "job"})
        self.now = time.time_ns()

    def add(
        self, rank: int, frames: Any, *, attempt: int = 0, ago: float = 1.0, quiet: float = 30.0, **more: Any
    ) -> None:
        text = "\n".join(f'  File "{path}", line {line} in {name}' for path, line, name in frames)
        file = StacksFile(self.run.file("stacks", attempt, rank))
        moment = self.now - round(ago * NS)
        members = {"time": moment, "since": moment - round(quiet * NS), "limit": 30 * NS, "step": 7, "phase": "step"}
        threads = {"1": "MainThread", "2": "pin"}
        if not self.run.attempts(rank):
            self.live(rank, attempt)
        other = 'Thread 0x02 (most recent call first):\n  File "/app/pin.py", line 1 in pin\n'
        stack = f"Thread 0x01 (most recent call first):\n{text}\n\n{other}"
        file.add(DUMP, stack, training="1", threads=threads, **{**members, **more})
        if moved := more.get("moved_on"):
            file.add(MOVED_ON, time=moved)
        file.close()

    def live(self, rank: int, attempt: int = 0, ago: float = 0.0) -> None:
        """Leave a journal with a sign of life."""
        head = bytearray(records.encode_header(attempt, rank, 0, 1))
        sign = records.encode_heartbeat(self.now - round(ago * NS), 0)
        head[records.HEARTBEAT_AT : records.HEARTBEAT_AT + len(sign)] = sign
        self.run.segment_path(attempt, rank, 0).write_bytes(head + bytes(records.SIZE))

    def standstill(self, **question: Any) -> Standstill:
        return standstill(RecordedRun(self.run), **question)
