"""``goodput``, ``goodput_elastic`` and ``measurement``: recording by starts and ends, and querying goodput."""

from __future__ import annotations

import enum
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import wraps
from itertools import pairwise
from time import time_ns
from typing import Any, ClassVar, Final, ParamSpec

from otel_goodput._accounting.totals import Partition, Totals
from otel_goodput._journal.records import LARGEST
from otel_goodput._recording.phases import Opening
from otel_goodput._recording.plain import numbered
from otel_goodput._resources.kubernetes import goes_with
from otel_goodput._runtime.guard import contain, report_once
from otel_goodput._runtime.recorder import Recorder
from otel_goodput._settings.options import DIRECTORY, Settings
from otel_goodput._text.durations import NS
from otel_goodput.api import disabled, imported_again
from otel_goodput.compat import goodput_utils as utils
from otel_goodput.compat.goodput_utils import BadputType, GoodputType, IntervalMetricType, MetricType
from otel_goodput.errors import JournalError
from otel_goodput.reports.ml_goodput_entries import Pairs, waited_for
from otel_goodput.runs import Run, open_run
from otel_goodput.semconv import SLICE_AVAILABLE, SLICE_STEPPING, Category, Phase

__all__ = [
    "BadputType",
    "ElasticGoodputCalculator",
    "ElasticGoodputRecorder",
    "ElasticIntervalWorkloadMetricDetails",
    "ElasticWorkloadMetricDetails",
    "Event",
    "GoodputCalculator",
    "GoodputRecorder",
    "GoodputType",
    "IntervalMetricType",
    "IntervalWorkloadMetricDetails",
    "MetricType",
    "UnproductiveTimeDict",
    "WorkloadMetricDetails",
    "compute_ideal_step_time",
]

P = ParamSpec("P")
# Programs import these from here.
UnproductiveTimeDict = utils.UnproductiveTimeDict
WorkloadMetricDetails = utils.WorkloadMetricDetails
IntervalWorkloadMetricDetails = utils.IntervalWorkloadMetricDetails
ElasticWorkloadMetricDetails = utils.ElasticWorkloadMetricDetails
ElasticIntervalWorkloadMetricDetails = utils.ElasticIntervalWorkloadMetricDetails
compute_ideal_step_time = utils.compute_ideal_step_time

REMEMBERED: Final = 100_000  # step times, for the deviation of each step
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


# --- the recorders behind the drop-in: one for each job and logger in a process, whoever asks for it ------------------


class NoEnd(Exception):
    """A phase was given up: its end was not recorded."""


def run_id_of(job_name: str, logger_name: str) -> str:
    """The run of a job and its logger: the job's name, and the logger's if that does not hold it."""
    return job_name if job_name in logger_name else f"{job_name}.{logger_name}"


def moment(at: datetime | None) -> int | None:
    """A time as ns since the epoch; without a time zone it is UTC. Raises TypeError if it is not a datetime.

    Raises ValueError if a record cannot hold it (``datetime.max``), or it is no time (pandas' ``NaT``).
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
    """Records a job by starts and ends, with its `recorder`."""

    def __init__(self, job_name: str, logger_name: str) -> None:
        directory, place = Settings.directory.variable, goes_with(os.environ)
        if place and not os.environ.get(directory, "").strip():  # Cloud Logging outlives a pod or VM, its disk may not
            text = (
                "goodput is recorded in ./goodput, which is lost with %s, so a restart cannot continue the run. Add "
                "%s=gs://YOUR-BUCKET/goodput to the job's environment"
            )
            report_once("compat directory", text, place, directory)
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
        """Record a start. Raises TypeError or ValueError, as :func:`moment`."""
        if self.recorder.closed:  # in a forked child, whose copies of our locks may be held for ever
            return
        at = moment(time)
        if phase == Phase.STEP:
            number, now = int(name), time_ns() if at is None else at
            numbered(number, phase)  # raises, before it ends the one before
            if self._latest is not None and number == self._latest[0] + 1:
                self._lengths.append((self._latest[0], now - self._latest[1]))
            self._latest = number, now
        elif phase in (Phase.JOB, Phase.ELASTIC_WAIT):
            self._latest = None
        # A job that is open: its end was not recorded. This is a retry, or a cell is run again.
        self._died = self._recorded_at if phase == Phase.JOB else None
        self._pairs.start(phase, name, at)
        self._died, self._recorded_at = None, self._now() if at is None else at

    def end(self, phase: str, name: str | int = "", time: datetime | None = None) -> None:
        """Record an end. Raises TypeError or ValueError, as :func:`moment`."""
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

    def _begin(self, phase: str, name: str | int, at: int | None) -> Opening[Any]:
        argument = waited_for(str(name)) if phase == Phase.ELASTIC_WAIT else name
        arguments = (argument,) if phase in (Phase.STEP, Phase.CUSTOM, Phase.ELASTIC_WAIT) else ()
        # The methods have the names of the phases.
        opening: Opening[Any] = getattr(self.recorder, phase)(*arguments, start_time=at)
        opening.__enter__()
        return opening

    def _end(self, opening: Opening[Any], at: int | None, given_up: bool) -> None:
        if given_up and self._died is not None:
            at = self._died
        if at is not None:
            opening.until(at)
        if given_up:
            opening.__exit__(NoEnd, NoEnd("its end was not recorded"), None)
        else:
            opening.__exit__(None, None, None)


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


class Event(enum.Enum):
    """A phase of the job; its value is in the names of the recorder's methods."""

    JOB = "job"
    ACCELERATOR_INIT = "tpu_init"
    TRAINING_PREP = "training_preparation"
    DATA_LOADING = Phase.DATA_LOADING
    STEP = "step"
    CUSTOM = "custom_badput_event"


def _pair(phase: str, event: str = "") -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the recorder's methods for the start and the end (UTC; None is now) of a phase, Google's `event`."""

    def start(self: GoodputRecorder, start_time: datetime | None = None) -> None:
        self._start(phase, "", start_time)

    def end(self: GoodputRecorder, end_time: datetime | None = None) -> None:
        self._end(phase, "", end_time)

    for method, name in ((start, "start"), (end, "end")):
        method.__name__, method.__doc__ = f"record_{event or phase}_{name}_time", f"The {name} of the phase {phase}."
    return harmless(start), harmless(end)


class GoodputRecorder:
    """Records the phases of a job.

    Args:
        job_name, logger_name: name the account; recorders with the same names are one.
        logging_enabled: whether this process records. One process of a job does.
        cloud_logger, background_grace_period_s, background_batch_size, background_max_latency_s: of no effect here.
    """

    def __init__(
        self,
        job_name: str,
        logger_name: str,
        logging_enabled: bool = False,
        cloud_logger: object = None,
        *,
        background_grace_period_s: float = 5.0,
        background_batch_size: int = 100,
        background_max_latency_s: float = 2.0,
    ) -> None:
        self.job_name = job_name
        self._handle: Handle | None = open_handle(job_name, logger_name) if logging_enabled else None

    @harmless
    def flush(self) -> None:
        """Export what is recorded, for at most the grace period. It is on disk already."""
        if self._handle is not None:
            self._handle.recorder.flush()

    record_job_start_time, record_job_end_time = _pair(Phase.JOB)
    record_tpu_init_start_time, record_tpu_init_end_time = _pair(Phase.ACCELERATOR_INIT, "tpu_init")
    record_training_preparation_start_time, record_training_preparation_end_time = _pair(
        Phase.TRAINING_PREP, "training_preparation"
    )
    record_data_loading_start_time, record_data_loading_end_time = _pair(Phase.DATA_LOADING)

    @harmless
    def record_step_start_time(self, step: int, start_time: datetime | None = None) -> None:
        """A step starts, and the one before it ends."""
        self._start(Phase.STEP, int(step), start_time)

    @harmless
    def record_custom_badput_event_start_time(
        self, start_time: datetime | None = None, custom_badput_event_type: str = "unknown"
    ) -> None:
        """Anything else that blocks training begins."""
        self._start(Phase.CUSTOM, str(custom_badput_event_type).strip() or "unknown", start_time)

    @harmless
    def record_custom_badput_event_end_time(
        self, end_time: datetime | None = None, custom_badput_event_type: str = "unknown"
    ) -> None:
        """It ends."""
        self._end(Phase.CUSTOM, str(custom_badput_event_type).strip() or "unknown", end_time)

    def record_checkpoint_progress(self, step: int, checkpoint_start_time: datetime) -> None:
        """Do nothing, as in ml-goodput-measurement. Checkpoints of Orbax are recorded automatically."""

    @contextmanager
    def record_event(self, event: Event, *args: object) -> Iterator[None]:
        """Record `event` around the block; `args`: the number of a step, the type of a custom event.

        An exception in the block means that the event did not end.
        """
        named = {}
        if event is Event.CUSTOM:
            named["custom_badput_event_type"] = str(args[0]) if args else "unknown"
            args = ()
        getattr(self, f"record_{event.value}_start_time")(*args, **named)
        yield
        if event is not Event.STEP:
            getattr(self, f"record_{event.value}_end_time")(**named)

    def _start(self, kind: str, name: str | int, at: datetime | None) -> None:
        if self._handle is not None:
            self._handle.start(kind, name, at)

    def _end(self, kind: str, name: str, at: datetime | None) -> None:
        if self._handle is not None:
            self._handle.end(kind, name, at)


class ElasticGoodputRecorder(GoodputRecorder):
    """Records an elastic job."""

    @harmless
    def record_elastic_slice_counts(
        self, active_slices: int, total_slices: int, available_slices: int, timestamp: datetime | None = None
    ) -> None:
        """Record how many slices step, exist and are available from `timestamp` (UTC; None is now) on."""
        if self._handle is not None:
            counts = int(active_slices), int(available_slices), int(total_slices)
            self._handle.recorder.slice_counts(*counts, time=moment(timestamp))

    @harmless
    def record_elastic_wait_start_time(self, event_type: str, start_time: datetime | None = None) -> None:
        """Waiting for slices begins; what was open has failed. `event_type`: elastic_slice_down, elastic_scale_up."""
        self._start(Phase.ELASTIC_WAIT, str(event_type), start_time)

    @harmless
    def record_elastic_wait_end_time(self, event_type: str, end_time: datetime | None = None) -> None:
        """Waiting for slices ends."""
        self._end(Phase.ELASTIC_WAIT, str(event_type), end_time)

    record_elastic_reinit_start_time, record_elastic_reinit_end_time = _pair(Phase.ELASTIC_REINIT)


class GoodputCalculator:
    """Answers from this process's account of a job, else from its journal in ``OTEL_GOODPUT_DIR``, a folder or URL.

    Args:
        job_name, logger_name: name the account.
        cloud_logger, using_pathways, max_logs_retention_period, gcs_path, cache_dir: of no effect here.
    """

    elastic: ClassVar[bool] = False

    def __init__(
        self,
        job_name: str,
        logger_name: str,
        cloud_logger: object = None,
        using_pathways: bool = False,
        max_logs_retention_period: timedelta | None = None,
        gcs_path: str | None = None,
        cache_dir: str = "/tmp",
    ) -> None:
        self.job_name = job_name
        self.using_pathways = using_pathways
        self._logger_name = logger_name
        self._run: Run | None = None

    def sync_to_gcs(self) -> None:
        """Do nothing: the journal is where OTEL_GOODPUT_DIR says, and is written as the job runs."""

    def get_job_goodput(
        self, include_badput_breakdown: bool = False, configured_ideal_step_time: float | None = None
    ) -> tuple[float, utils.Badput, int]:
        """Return the goodput of the run so far in percent, the badput by type in percent, and the highest kept step.

        Raises ValueError if there is no such job, or no time has passed.
        """
        return self._shares(self.totals(), include_badput_breakdown)

    def get_job_goodput_interval(
        self, interval_start: datetime, interval_end: datetime
    ) -> tuple[float, utils.Badput, int, float, int]:
        """Return goodput and badput of an interval in percent, the highest kept step, its seconds, and disruptions.

        Raises ValueError if there is no such job, or it did not run in that interval.
        """
        totals = self._in(interval_start, interval_end)
        begin, end, partition = totals.windows[0]
        disruptions = sum(1 for one in totals.history if begin <= one.time < end)
        badput = utils.badput_percent(partition, elastic=self.elastic)
        top = partition.max_productive_step or 0
        return utils.goodput_percent(partition), badput, top, partition.elapsed / NS, disruptions

    def get_job_goodput_with_exclusions(
        self,
        exclusion_intervals: Sequence[tuple[datetime, datetime]],
        include_badput_breakdown: bool = False,
        configured_ideal_step_time: float | None = None,
    ) -> tuple[float, utils.Badput, int, float]:
        """Return what :meth:`get_job_goodput` does without these intervals, and how many seconds that leaves out.

        Raises ValueError if there is no such job, or nothing is left.
        """
        cut = [(_seconds(begin), _seconds(end)) for begin, end in exclusion_intervals]
        totals = _lasting(self._journal().report(exclude=cut).totals)
        return *self._shares(totals, include_badput_breakdown), totals.excluded / NS

    def get_step_deviation(self, configured_ideal_step_time: float | None = None) -> dict[int, float]:
        """Return by how many seconds each step differed from the ideal, from its start to that of the next step.

        Of a job in this process, the latest 100,000 steps. Raises ValueError if no step of the job was followed by
        another.
        """
        times = self._step_times()
        ideal = configured_ideal_step_time or utils.compute_ideal_step_time(list(times.values()))
        if not ideal:
            raise ValueError(f"job {self.job_name!r} has no step that another one follows")
        return {step: abs(seconds - ideal) for step, seconds in times.items()}

    def get_job_goodput_details(self) -> utils.ElasticWorkloadMetricDetails:
        """Return the figures of the run in seconds; zeros while there are none."""
        try:
            totals = self.totals()
        except ValueError:
            return {
                "goodput_time": {},
                "badput_time": {},
                "max_productive_step": 0,
                "total_elapsed_time": 0.0,
                "disruption_count": 0,
                "step_time_deviation": {},
                "ideal_step_time": 0.0,
                "total_excluded_time": 0.0,
            }
        run, times = totals.run, self._step_times()
        ideal = utils.compute_ideal_step_time(list(times.values())) or 0.0
        return {
            "goodput_time": {GoodputType.TOTAL: run.whole_steps[Category.PRODUCTIVE] / NS},
            "badput_time": utils.badput_seconds(run, totals.overlapped_data_loading, elastic=self.elastic),
            "max_productive_step": run.max_productive_step or 0,
            "total_elapsed_time": run.elapsed / NS,
            "disruption_count": sum(totals.disruptions.values()),
            "step_time_deviation": {step: abs(seconds - ideal) for step, seconds in times.items()},
            "ideal_step_time": ideal,
            "total_excluded_time": totals.excluded / NS,
            **self._slices(run),
        }

    def get_interval_metric_details(
        self, interval_start: datetime, interval_end: datetime
    ) -> utils.ElasticIntervalWorkloadMetricDetails:
        """Return the figures of an interval in percent; none if the job did not run in it."""
        size = int(_seconds(interval_end) - _seconds(interval_start))
        try:
            partition = self.within(interval_start, interval_end)
        except ValueError:
            return {"interval_goodput": {}, "interval_badput": {}, "interval_size": size}
        return {
            "interval_goodput": {GoodputType.TOTAL: utils.goodput_percent(partition)},
            "interval_badput": utils.badput_percent(partition, elastic=self.elastic),
            "interval_size": size,
            **self._slices(partition),
        }

    def totals(self) -> Totals:
        """The account of the run so far. Raises ValueError if there is no such job, or no time has passed."""
        handle = self.handle
        return _lasting(self._journal().totals() if handle is None else handle.recorder.totals())

    def within(self, begin: datetime, end: datetime) -> Partition:
        """The account of an interval. Raises ValueError if there is no such job, or it did not run then."""
        return self._in(begin, end).windows[0][2]

    def _slices(self, partition: Partition) -> utils.SliceShares:
        shares = partition.slice_efficiency if self.elastic else None
        if not shares:
            return {}
        stepping, available = shares[SLICE_STEPPING], shares[SLICE_AVAILABLE]
        return {"stepping_slice_efficiency": float(stepping), "available_slice_efficiency": float(available)}

    def _shares(self, totals: Totals, breakdown: bool) -> tuple[float, utils.Badput, int]:
        run, overlapped = totals.run, totals.overlapped_data_loading
        badput = utils.badput_percent(run, overlapped, elastic=self.elastic) if breakdown else {}
        return utils.goodput_percent(totals.run), badput, totals.run.max_productive_step or 0

    def _in(self, begin: datetime, end: datetime) -> Totals:
        totals = self._journal().report(window=(_seconds(begin), _seconds(end))).totals
        if not totals.windows[0][2].elapsed:
            raise ValueError(f"job {self.job_name!r} did not run between {begin} and {end}")
        return totals

    @property
    def handle(self) -> Handle | None:
        """The handle of the job; None if this process has none."""
        return _handles.get((self.job_name, self._logger_name))

    def _journal(self) -> Run:
        """The run, as it is on disk now. Raises ValueError if there is none."""
        handle = self.handle
        place = None if handle is None else handle.recorder.path
        try:
            if place is not None:
                return open_run(place)
            if self._run is None:
                run_id = run_id_of(self.job_name, self._logger_name)
                self._run = open_run(os.environ.get(Settings.directory.variable) or DIRECTORY, run_id)
            else:
                self._run.refresh()
        except JournalError as error:
            raise ValueError(f"there is no account of job {self.job_name!r}: {error}") from error
        return self._run

    def _step_times(self) -> dict[int, float]:
        handle = self.handle
        if handle is not None:
            return handle.step_times
        return {
            one.step: (after.start_ns - one.start_ns) / NS
            for one, after in pairwise(self._journal().steps())
            if after.step == one.step + 1
        }


class ElasticGoodputCalculator(GoodputCalculator):
    """Answers for an elastic job; the details have the shares of slices, if these were counted."""

    elastic = True


def _lasting(totals: Totals) -> Totals:
    if not totals.run.elapsed:
        why = "everything is excluded" if totals.excluded else "call record_job_start_time() first"
        raise ValueError(f"no time of this job has been accounted for: {why}")
    if not totals.run.known:
        report_once(
            "compat clock",
            "the end of steps on the device is not known: this goodput is by the host's clock, at which steps were "
            "dispatched",
        )
    return totals


def _seconds(at: datetime) -> float:
    if (time := moment(at)) is not None:
        return time / NS
    raise ValueError("an interval has two ends")
