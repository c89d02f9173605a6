"""The recorders behind the drop-in: one for each job and logger in a process, whoever asks for it."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from datetime import datetime, timezone
from functools import wraps
from time import time_ns
from typing import Any, Final, ParamSpec

from otel_goodput._journal.records import LARGEST
from otel_goodput._recording.phases import Opening
from otel_goodput._recording.plain import numbered
from otel_goodput._resources.kubernetes import goes_with
from otel_goodput._runtime.guard import contain, report_once
from otel_goodput._runtime.recorder import Recorder
from otel_goodput._settings.options import Settings
from otel_goodput._text.durations import NS
from otel_goodput.api import disabled, imported_again
from otel_goodput.reports.ml_goodput_entries import Pairs, waited_for
from otel_goodput.semconv import Phase

P = ParamSpec("P")

REMEMBERED: Final = 100_000  # step times, for the deviation of each step
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


class NoEnd(Exception):
    """A phase was given up: its end was not recorded."""


def run_id_of(job_name: str, logger_name: str) -> str:
    """The run of a job and its logger: the job's name, and the logger's if that does not hold it."""
    return job_name if job_name in logger_name else f"{job_name}.{logger_name}"


def moment(at: datetime | None) -> int | None:
    """A time as ns since the epoch; without a time zone it is UTC.

    Raises:
        TypeError: it is not a datetime.
        ValueError: a record cannot hold it (``datetime.max``), or it is no time (pandas' ``NaT``).
    """
    if at is None:
        return None
    if not isinstance(at, datetime):
        raise TypeError(f"{at!r} is not a datetime")
    since = (at if at.tzinfo else at.replace(tzinfo=timezone.utc)) - _EPOCH
    nanoseconds = (since.days * 86_400 + since.seconds) * NS + since.microseconds * 1_000
    if not abs(nanoseconds) <= LARGEST:  # nor is nan
        raise ValueError(f"{at!r} cannot be recorded")
    return nanoseconds


def harmless(function: Callable[P, None]) -> Callable[P, None]:
    """Have `function` log what goes wrong instead of raising it: it is called in training."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except Exception as error:
            contain(f"{function.__name__}()", error)

    return call


class Handle:
    """Records a job by starts and ends.

    Attributes:
        recorder: what records it.
    """

    def __init__(self, job_name: str, logger_name: str) -> None:
        _warn_of_lost_disks()
        # Only the process that logs records, whichever of the job's it is, and the account is its own.
        self.recorder = Recorder(job_name, run_id=run_id_of(job_name, logger_name), process_index=0, process_count=1)
        self._pairs: Pairs[Opening[Any]] = Pairs(self._begin, self._end)
        self._recorded_at = 0  # when something was recorded last, ns
        self._died: int | None = None  # while a job begins: when the one that is open recorded last
        self._latest: tuple[int, int] | None = None  # number and start (ns) of the latest step
        self._lengths: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)

    @property
    def step_times(self) -> dict[int, float]:
        """Seconds from the start of a step to that of the next one, of the latest steps that another one followed."""
        return {number: length / NS for number, length in tuple(self._lengths)}

    def start(self, phase: str, name: str | int = "", time: datetime | None = None) -> None:
        """Record a start.

        Raises:
            TypeError, ValueError: as :func:`moment`.
        """
        if self.recorder.closed:  # in a forked child, whose copies of our locks may be held for ever
            return
        at = moment(time)
        if phase == Phase.STEP:
            numbered(int(name), phase)  # before it ends the one before
            self._measure(int(name), time_ns() if at is None else at)
        elif phase in (Phase.JOB, Phase.ELASTIC_WAIT):
            self._latest = None
        self._died = (
            self._recorded_at if phase == Phase.JOB else None
        )  # its end was not recorded: a retry, or a cell again
        self._pairs.start(phase, name, at)
        self._died, self._recorded_at = None, self._now() if at is None else at

    def end(self, phase: str, name: str | int = "", time: datetime | None = None) -> None:
        """Record an end.

        Raises:
            TypeError, ValueError: as :func:`moment`.
        """
        if self.recorder.closed:
            return
        at = moment(time)
        if self._pairs.end(phase, name, at):
            self._recorded_at = self._now() if at is None else at
        else:
            which = f" {name!r}" if name else ""
            report_once(f"end of {phase}", "the end of %s%s, which had not started, is ignored", phase, which)

    def _now(self) -> int:
        tracer = self.recorder.tracer
        return time_ns() if tracer is None else tracer.clock()

    def _measure(self, number: int, at: int) -> None:
        if self._latest is not None and number == self._latest[0] + 1:
            self._lengths.append((self._latest[0], at - self._latest[1]))
        self._latest = number, at

    def _begin(self, phase: str, name: str | int, at: int | None) -> Opening[Any]:
        arguments: dict[str, tuple[object, ...]] = {
            Phase.STEP: (name,),
            Phase.CUSTOM: (name,),
            Phase.ELASTIC_WAIT: (waited_for(str(name)),),
        }
        # The methods have the names of the phases.
        opening: Opening[Any] = getattr(self.recorder, phase)(*arguments.get(phase, ()), start_time=at)
        opening.__enter__()
        return opening

    def _end(self, opening: Opening[Any], at: int | None, given_up: bool) -> None:
        if given_up and self._died is not None:
            at = self._died
        if at is not None:
            opening.until(at)
        error = NoEnd("its end was not recorded") if given_up else None
        opening.__exit__(None if error is None else NoEnd, error, None)


_handles: dict[tuple[str, str], Handle] = {}
_lock = threading.Lock()


def open_handle(job_name: str, logger_name: str) -> Handle | None:
    """The handle of a job, made if this process has none; None where ``configure()`` records nothing, too."""
    if imported_again() or disabled():
        return None
    with _lock:
        handle = _handles.get((job_name, logger_name))
        if handle is None or handle.recorder.closed:
            handle = _handles[job_name, logger_name] = Handle(job_name, logger_name)
        return handle


def handle_of(job_name: str, logger_name: str) -> Handle | None:
    """The handle of a job; None if this process has none."""
    return _handles.get((job_name, logger_name))


def _warn_of_lost_disks() -> None:
    """Cloud Logging outlives a pod or a VM. A folder on its disk may not."""
    place = goes_with(os.environ)
    if not place or os.environ.get(Settings.directory.variable, "").strip():
        return
    report_once(
        "compat directory",
        "goodput is recorded in ./goodput, which is lost with %s, so a restart cannot continue the run. Add "
        "%s=gs://YOUR-BUCKET/goodput to the job's environment",
        place,
        Settings.directory.variable,
    )
