"""Runs that were recorded, or that are being recorded, for programs: their reports, steps and phases."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias

from otel_goodput._accounting.totals import Totals
from otel_goodput._settings.options import parse_windows
from otel_goodput._text.durations import NS, Moment, parse_moment, parse_requested_moment
from otel_goodput._text.redact import without_credentials
from otel_goodput.errors import GoodputError, JournalError
from otel_goodput.reports import records
from otel_goodput.reports.records import AttemptRecord, PhaseRecord, StepRecord
from otel_goodput.reports.report import Report
from otel_goodput.reports.run import RecordedRun, runs_at

Time: TypeAlias = "datetime | float | str"
"""A moment: a datetime with a time zone, Unix seconds, or a text as the command line takes it (``1h ago``)."""
Interval: TypeAlias = "tuple[Time, Time]"
Intervals: TypeAlias = "Interval | Sequence[Interval]"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Run:
    """One run: :func:`open_run` opens it. Each call reads the journal's current state, so the run may be live.

    A run at a URL is copied to a temporary folder; :meth:`refresh` fetches what is new, :meth:`close` or the end of a
    ``with`` block removes the copy, and so does the end of the program.

    Attributes:
        run_id: the id of the run.
        job_name: name of the job; empty if unknown.
        path: the folder that is read; of a run at a URL, its copy.
    """

    def __init__(self, run: RecordedRun, place: _Place) -> None:
        self._run = run
        self._place: _Place | None = place
        self.path = run.folder.path
        self.run_id, self.job_name = run.run_id, str(run.folder.identity().get("job_name", ""))

    def __repr__(self) -> str:
        return f"<Run {self.run_id!r}>"

    def report(
        self,
        *,
        at: Time | None = None,
        window: Intervals = (),
        exclude: Intervals = (),
        ideal_step_time: float | None = None,
        process: int | None = None,
        rolling: str | Sequence[str] = (),
    ) -> Report:
        """Return the account of the run: that of the job of all its ranks, or of one process.

        If the job has several ranks and there is no account of all of them, it is that of the first process; the
        report says so.

        Args:
            at: the moment of the account; by default now while the job is running, else its last sign of life.
            window: accounts for these intervals too, one (begin, end) or several; in the report's ``windows``.
            exclude: intervals that are left out of the account.
            ideal_step_time: seconds; by default it is estimated.
            process: index of the process whose account it is; by default that of the job.
            rolling: lengths of the rolling windows, such as ``"15m"``, in the report's ``rolling``; by default those
                that the run was configured with.

        Raises:
            JournalError: the process left no journal, or none that can be read; the run was closed.
            ValueError: a time or a length is not valid, a time has no time zone, or an interval ends before it begins.
        """
        report = self._opened().report(
            at=None if at is None else _moment(at),
            windows=_intervals(window, "window"),
            exclusions=_intervals(exclude, "exclude"),
            ideal_step_time=None if ideal_step_time is None else _step_time(ideal_step_time),
            process=process,
            rolling=parse_windows(rolling if isinstance(rolling, str) else ",".join(map(str, rolling))),
        )
        return replace(report, page=self._page) if at is None and not process else report

    def totals(self, *, at: Time | None = None, process: int | None = None) -> Totals:
        """Return the account as numbers, in ns.

        Args:
            at: the moment of the account; by default now while the job is running, else its last sign of life.
            process: index of the process whose account it is; by default that of the job.

        Raises:
            JournalError, ValueError: as :meth:`report`.
        """
        return self.report(at=at, process=process).totals

    def attempts(self, *, process: int = 0) -> list[AttemptRecord]:
        """Return what each attempt ran with: settings, versions, hyperparameters, resource; the first one first.

        An attempt that died in its first two seconds may have left nothing, and is missing.

        Args:
            process: index of the process.

        Raises:
            JournalError: the run was closed.
        """
        return list(records.attempts(self._opened().all_facts(process)))

    def steps(self, *, process: int = 0) -> Iterator[StepRecord]:
        """Yield all executions of steps, in order of their begin; the whole journal is read first.

        Args:
            process: index of the process whose journal is read.

        Raises:
            JournalError: as :meth:`report`.
        """
        yield from records.steps(self._opened().detail(process))

    def phases(self, *, process: int = 0) -> Iterator[PhaseRecord]:
        """Yield all phases other than steps, in order of their begin; the whole journal is read first.

        Args:
            process: index of the process whose journal is read.

        Raises:
            JournalError: as :meth:`report`.
        """
        yield from records.phases(self._opened().detail(process))

    def to_dataframe(
        self,
        of: Literal["steps", "phases"] = "steps",
        *,
        process: int = 0,
        library: Literal["pandas", "polars"] | None = None,
    ) -> Any:
        """Return :meth:`steps` or :meth:`phases` as a DataFrame of pandas, or of polars if only that is installed.

        Its columns are the fields of the records, with moments as UTC times (``start`` for ``start_ns``) and other
        lengths in seconds (``net_s`` for ``net_ns``).

        Args:
            of: ``"steps"`` or ``"phases"``.
            process: index of the process whose journal is read.
            library: ``"pandas"`` or ``"polars"``; by default pandas if it is installed, else polars.

        Raises:
            GoodputError: neither library is installed, or not the requested one.
            JournalError: as :meth:`report`.
            ValueError: `of` or `library` has another value.
        """
        if of not in ("steps", "phases"):
            raise ValueError(f"of={of!r} is neither 'steps' nor 'phases'")
        wanted = tuple(records.FRAMES) if library is None else (library,)
        if not set(wanted) <= records.FRAMES.keys():
            raise ValueError(f"library={library!r} is neither 'pandas' nor 'polars'")
        there = next((name for name in wanted if find_spec(name)), None)
        if there is None:
            raise GoodputError(f"to_dataframe() needs {' or '.join(wanted)}: pip install {wanted[0]}")
        rows: Iterator[StepRecord | PhaseRecord] = (
            self.steps(process=process) if of == "steps" else self.phases(process=process)
        )
        return records.data_frame(rows, StepRecord if of == "steps" else PhaseRecord, there)

    def html(self, path: str | Path) -> Path:
        """Write the run as a page with charts and a timeline: one file that needs no network. Returns its path.

        Args:
            path: the file to write.

        Raises:
            GoodputError: `path` is a directory; JournalError as :meth:`report`.
            OSError: the file cannot be written.
        """
        return self.report().html(path)

    def refresh(self) -> None:
        """Fetch what is new of a run at a URL. A local run is always read as it is.

        Raises:
            JournalError: the URL cannot be reached, or the run was closed.
        """
        mirror = self._opened().mirror
        if mirror is None:
            return
        try:
            mirror.refresh()
        except Exception as error:  # each fsspec filesystem raises its own errors
            raise JournalError(f"run {self.run_id!r} cannot be fetched: {without_credentials(str(error))}") from error

    def close(self) -> None:
        """Close the run. The copy of a run at a URL is removed when the last run opened with it is closed."""
        self._place = None

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _opened(self) -> RecordedRun:
        if self._place is None:
            raise JournalError(f"run {self.run_id!r} was closed")
        return self._run

    def _page(self, report: Report) -> str:
        from otel_goodput._viewer import page

        return page.of_run(self._opened())


class _Place:
    """Where runs were found; a copy of a URL is removed when nobody uses it any more."""

    def __init__(self, stack: ExitStack) -> None:
        weakref.finalize(self, stack.close)


def open_run(place: str | Path, run_id: str | None = None) -> Run:
    """Open a run, finished or live.

    Args:
        place: the run's folder, the folder that holds the runs, or a URL (``gs://…``; needs the extra ``remote``).
        run_id: id of the run to use, if there are several.

    Raises:
        JournalError: there is no such run, there are several and `run_id` does not say which, or the URL cannot be
            read.
    """
    runs = _runs_at(place, run_id)
    if len(runs) > 1:
        ids = ", ".join(repr(run.run_id) for run in runs[:10]) + (", …" if len(runs) > 10 else "")
        raise JournalError(f"{without_credentials(str(place))} holds {len(runs)} runs: {ids}; choose one with run_id=")
    return runs[0]


def open_runs(place: str | Path) -> list[Run]:
    """Open all runs in a folder or at a URL, in order of their start.

    Args:
        place: the folder that holds the runs, one run's folder, or a URL.

    Raises:
        JournalError: there is none, or the URL cannot be read.
    """
    return _runs_at(place, None)


def _runs_at(place: str | Path, run_id: str | None) -> list[Run]:
    stack = ExitStack()
    try:
        recorded = stack.enter_context(runs_at(str(place), run_id))
    except OSError as error:
        raise JournalError(f"{without_credentials(str(place))}: {error.strerror or error}") from error
    held = _Place(stack)
    runs = [(one.folder.created_at() or 0, number, Run(one, held)) for number, one in enumerate(recorded)]
    return [run for *_, run in sorted(runs, key=lambda one: one[:2])]


def _intervals(value: Intervals, name: str) -> list[tuple[Moment, Moment]]:
    """One (begin, end) or several as moments. Raises ValueError."""
    pairs: Any = value if isinstance(value, Sequence) else None
    if pairs and len(pairs) == 2 and not any(isinstance(part, (tuple, list)) for part in pairs):
        pairs = [pairs]
    if pairs is None or any(not isinstance(pair, (tuple, list)) or len(pair) != 2 for pair in pairs):
        raise ValueError(f"{name}={value!r} is neither one (begin, end) pair nor a sequence of them")
    return [(_moment(begin), _moment(end)) for begin, end in pairs]


def _moment(value: Time) -> Moment:
    """A moment as a user gives it. Raises ValueError."""
    if isinstance(value, str):
        return parse_requested_moment(value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone: give it one, as in datetime.now(timezone.utc)")
        since = value - _EPOCH
        return Moment((since.days * 86_400 + since.seconds) * NS + since.microseconds * 1_000)
    number: Any = value  # of numpy, too
    if isinstance(number, bool) or not isinstance(number, Real):
        raise ValueError(f"{value!r} is not a time: expected a datetime, Unix seconds, or a text such as '1h ago'")
    seconds = float(number)
    try:
        return Moment(parse_moment(repr(seconds)))
    except ValueError:
        hint = "; is it in ns?" if abs(seconds) > time.time() * 1e6 else ""
        raise ValueError(f"{value!r} is not a time in Unix seconds{hint}") from None


def _step_time(seconds: float) -> float:
    number: Any = seconds  # of numpy, too
    if isinstance(number, bool) or not isinstance(number, Real) or not 0 < seconds < 1e9:
        raise ValueError(f"ideal_step_time={seconds!r} is not a duration in seconds")
    return seconds * NS
