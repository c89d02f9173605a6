"""Journals made without a job: record by record, for what no small job can be."""

from __future__ import annotations

from pathlib import Path

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._journal import records
from otel_goodput._journal.sidecars import checked_json

START = 1_790_000_000 * 10**9
MS = 10**6


class Written:
    """Writes the journal of one attempt of one process; times are in ns after ``START``."""

    def __init__(self, folder: Path, run_id: str, attempt: int = 0, process: int = 0, begin: int = 0) -> None:
        self.run = folder / run_id
        self._place = attempt, process
        self._journal = self.run / "journal"
        self._journal.mkdir(parents=True, exist_ok=True)
        identity = {"run_id": run_id, "job_name": run_id, "created_at": START / 1e9}
        (self.run / "run.json").write_bytes(checked_json(identity))
        self._segment = 0
        self._records: list[bytes] = []
        self._key = 0
        self.add(ev.ATTEMPT, step=attempt, time=begin)

    def add(
        self, kind: int, phase: int = 0, key: int = 0, step: int = ev.NO_STEP, time: int = 0, flags: int = 0
    ) -> None:
        body = records.BODY.pack(kind, phase, flags, 0, key, step, START + time)
        self._records.append(records.seal(body))
        if len(self._records) == records.CAPACITY:
            self.flush()

    def phase(self, phase: int, begin: int, end: int | None, step: int = ev.NO_STEP, flags: int = 0) -> int:
        """A phase; returns its key. `flags` are those of its end."""
        self._key += 1
        self.add(ev.START, phase, self._key, step, begin)
        if end is not None:
            self.add(ev.END, phase, self._key, time=end, flags=flags)
        return self._key

    def flush(self) -> None:
        attempt, process = self._place
        name = f"a{attempt:04d}-p{process:04d}-{self._segment:06d}.segment"
        header = records.encode_header(attempt, process, self._segment, 1)
        (self._journal / name).write_bytes(header + b"".join(self._records))
        self._records.clear()
        self._segment += 1

    def close(self) -> Path:
        """Write what is left, and the lock of a process that is gone; returns the run's folder."""
        self.flush()
        attempt, process = self._place
        (self._journal / f"a{attempt:04d}-p{process:04d}.lock").touch()
        return self.run


def steady(folder: Path, run_id: str, steps: int, *, device: bool = False, clock: bool = True) -> Path:
    """A run of so many steps of 10 ms, each behind 2 ms of loading, saved every 100.

    With `device`, each step's work leaves the device while the next batch is loaded; without `clock`, it is not known.
    """
    made = Written(folder, run_id)
    job = made.phase(rules.JOB, 0, None)
    if not clock:
        made.add(ev.CLOCK, 1)
    now = 0
    for number in range(steps):
        made.phase(rules.DATA_LOADING, now, now + 2 * MS, number)
        begin, now = now + 2 * MS, now + 12 * MS
        key = made.phase(rules.STEP, begin, now, number, ev.ON_DEVICE if device else 0)
        if device:
            made.add(ev.DEVICE_END, rules.STEP, key, time=now + MS)
        if number % 100 == 99:
            made.phase(rules.SAVE, now, now + 5 * MS, number)
            now += 5 * MS
    made.add(ev.END, rules.JOB, job, time=now + 2 * MS)
    return made.close()
