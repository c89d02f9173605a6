"""ml-goodput-measurement with Google's client stubbed: no network, everything on this side of it is its own code."""

from __future__ import annotations

import bisect
import datetime as dt
import importlib.util
from typing import Any

MISSING = "ml-goodput-measurement is not installed: not measured"


def installed() -> bool:
    return importlib.util.find_spec("ml_goodput_measurement") is not None


class _Batch:
    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def log(self, message: object, **more: Any) -> None:
        self.entries.append({"message": message, **more})

    def commit(self) -> None:
        self.entries.clear()


class _Logger:
    def batch(self) -> _Batch:
        return _Batch()


class _Client:
    """Stands for ``google.cloud.logging.Client``: a batch that is committed is gone."""

    project = "benchmark"

    def __init__(self) -> None:
        self._handlers: set[object] = set()

    def logger(self, name: str, **_: Any) -> _Logger:
        return _Logger()


def recorder() -> Any:
    """A GoodputRecorder that writes through its own background handler, to nowhere."""
    import google.cloud.logging
    from ml_goodput_measurement.src import goodput

    setattr(google.cloud.logging, "Client", _Client)  # noqa: B010
    return goodput.GoodputRecorder("benchmark", "benchmark", logging_enabled=True)


class Log:
    """The log as the calculator reads it, already in memory; answers like the service's filter on time."""

    def __init__(self) -> None:
        self._times: list[dt.datetime] = []
        self._entries: list[dict[str, Any]] = []

    def write_cloud_logging_entry(self, entry: dict[str, Any]) -> None:
        time = max(value for key, value in entry.items() if key.endswith("_time"))
        self._times.append(dt.datetime.fromtimestamp(time, dt.timezone.utc))
        self._entries.append(entry)

    def read_cloud_logging_entries(
        self, start_time: dt.datetime | None = None, end_time: object = None, last_entry_info: object = None
    ) -> tuple[list[dict[str, Any]], tuple[dt.datetime, str]]:
        first = 0 if start_time is None else bisect.bisect_right(self._times, start_time)
        return self._entries[first:], (self._times[-1], str(len(self._times)))


class Monitored:
    """A job of `steps` steps in a log, and the calculator that its monitor asks.

    Args:
        steps: how many, a second each.
        directory: for the calculator's cache.
        now: unix seconds, when the last of them ends.
    """

    def __init__(self, steps: int, directory: str, now: float) -> None:
        from ml_goodput_measurement.src import goodput

        self._log = Log()
        self._recorder = goodput.GoodputRecorder("benchmark", "benchmark", True, self._log)
        self._at = now - steps
        self._step = 0
        self._recorder.record_job_start_time(self._time(0.0))
        for _ in range(steps):
            self.record()
        self._calculator = goodput.GoodputCalculator("benchmark", "benchmark", self._log, cache_dir=directory)

    def _time(self, offset: float) -> dt.datetime:
        return dt.datetime.fromtimestamp(self._at + offset, dt.timezone.utc)

    def record(self) -> None:
        """One more step."""
        self._recorder.record_data_loading_start_time(self._time(0.01))
        self._recorder.record_data_loading_end_time(self._time(0.06))
        self._recorder.record_step_start_time(self._step, self._time(0.07))
        self._step += 1
        self._at += 1.0

    def refresh(self) -> None:
        """What its monitor does at every upload, short of the upload."""
        self._calculator.get_job_goodput(include_badput_breakdown=True)
        self._calculator.get_job_goodput_details()
