"""The recorders behind the drop-in: one for each job and logger in a process, whoever asks for it."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime, timezone
from functools import wraps
from typing import Any, Final, ParamSpec

from otel_goodput._journal.records import LARGEST
from otel_goodput._recording.pairs import Pairs, waited_for
from otel_goodput._recording.phases import Opening
from otel_goodput._recording.plain import numbered
from otel_goodput._resources.kubernetes import goes_with
from otel_goodput._runtime.guard import contain, report_once
from otel_goodput._runtime.recorder import Recorder
from otel_goodput._settings.options import Settings
from otel_goodput._text.durations import NS
from otel_goodput.api import disabled, imported_again
from otel_goodput.semconv import Phase

P = ParamSpec("P")

REMEMBERED: Final = 100_000  # step times, for the deviation of each step
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


class NoEnd(Exception):
    """A phase was given up: nobody told its end."""


def run_id_of(job_name: str, logger_name: str) -> str:
    """The run of a job and its logger: the job's name, and the logger's if that does not hold it."""
    return job_name if job_name in logger_name else f"{job_name}.{logger_name}"


def moment(told: datetime | None) -> int | None:
    """A time as ns since the epoch; without a time zone it is UTC.

    Raises:
        TypeError: it is not a datetime.
        ValueError: it is none that a record can hold, such as ``datetime.max``, or no time at all (pandas' ``NaT``).
    """
    if told is None:
        return None
    if not isinstance(told, datetime):
        raise TypeError(f"{told!r} is not a datetime")
    since = (told if told.tzinfo else told.replace(tzinfo=timezone.utc)) - _EPOCH
    at = (since.days * 86_400 + since.seconds) * NS + since.microseconds * 1_000
    if not abs(at) <= LARGEST:  # nor is nan
        raise ValueError(f"{told!r} cannot be recorded")
    return at


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
    """The recorder of a job, told by starts and ends.

    Attributes:
        recorder: it.
    """

    def __init__(self, job_name: str, logger_name: str) -> None:
        _warn_of_lost_disks()
        # Only the process that logs is told of, and it alone is the account, whichever of the job's it is.
        self.recorder = Recorder(job_name, run_id=run_id_of(job_name, logger_name), process_index=0, process_count=1)
        self._pairs: Pairs[Opening[Any]] = Pairs(self._begin, self._end)
        self._told = 0  # when something was told last, ns
        self._died: int | None = None  # while a job begins: when the one that is open was heard of last
        self._latest: tuple[int, int] | None = None  # number and start (ns) of the latest step
        self._lengths: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)

    @property
    def step_times(self) -> dict[int, float]:
        """Seconds from the start of a step to that of the next one, of the latest steps that another one followed."""
        return {number: length / NS for number, length in tuple(self._lengths)}

    def start(self, phase: str, name: str | int = "", told: datetime | None = None) -> None:
        """Record a start.

        Raises:
            TypeError, ValueError: as :func:`moment`.
        """
        if self.recorder.closed:  # in a forked child, whose copies of our locks may be held for ever
            return
        at = moment(told)
        if phase == Phase.STEP:
            numbered(int(name), phase)  # before it ends the one before
            self._measure(int(name), time.time_ns() if at is None else at)
        elif phase in (Phase.JOB, Phase.ELASTIC_WAIT):
            self._latest = None
        self._died = self._told if phase == Phase.JOB else None  # nobody told that it ended: a retry, or a cell again
        self._pairs.start(phase, name, at)
        self._died, self._told = None, self._now() if at is None else at

    def end(self, phase: str, name: str | int = "", told: datetime | None = None) -> None:
        """Record an end.

        Raises:
            TypeError, ValueError: as :func:`moment`.
        """
        if self.recorder.closed:
            return
        at = moment(told)
        if self._pairs.end(phase, name, at):
            self._told = self._now() if at is None else at
        else:
            which = f" {name!r}" if name else ""
            report_once(f"end of {phase}", "the end of %s%s, which had not started, is ignored", phase, which)

    def _now(self) -> int:
        tracer = self.recorder.tracer
        return time.time_ns() if tracer is None else tracer.clock()

    def _measure(self, number: int, at: int) -> None:
        if self._latest is not None and number == self._latest[0] + 1:
            self._lengths.append((self._latest[0], at - self._latest[1]))
        self._latest = number, at

    def _begin(self, phase: str, name: str | int, at: int | None) -> Opening[Any]:
        recorder = self.recorder
        openings: dict[str, Callable[[], Opening[Any]]] = {
            Phase.JOB: lambda: recorder.job(start_time=at),
            Phase.ACCELERATOR_INIT: lambda: recorder.accelerator_init(start_time=at),
            Phase.TRAINING_PREP: lambda: recorder.training_prep(start_time=at),
            Phase.DATA_LOADING: lambda: recorder.data_loading(start_time=at),
            Phase.STEP: lambda: recorder.step(int(name), start_time=at),
            Phase.CUSTOM: lambda: recorder.custom(str(name), start_time=at),
            Phase.ELASTIC_WAIT: lambda: recorder.elastic_wait(waited_for(str(name)), start_time=at),
            Phase.ELASTIC_REINIT: lambda: recorder.elastic_reinit(start_time=at),
        }
        opening = openings[phase]()
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


def opened(job_name: str, logger_name: str) -> Handle | None:
    """The handle of a job, made if this process has none; None where ``configure()`` records nothing, too."""
    if imported_again() or disabled():
        return None
    with _lock:
        handle = _handles.get((job_name, logger_name))
        if handle is None or handle.recorder.closed:
            handle = _handles[job_name, logger_name] = Handle(job_name, logger_name)
        return handle


def found(job_name: str, logger_name: str) -> Handle | None:
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
