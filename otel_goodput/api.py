"""The module-level functions, which act on the recorder that ``configure()`` made. Before that they are no-ops."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from opentelemetry import metrics as metrics_api
from opentelemetry import trace as trace_api

from otel_goodput._accounting import Totals
from otel_goodput._recording import plain
from otel_goodput._recording.decorators import forgiving, not_callable
from otel_goodput._recording.phases import Phases
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime import host
from otel_goodput._runtime.guard import TRUE, contain, report_once
from otel_goodput._runtime.program import ProgramRecorder
from otel_goodput._runtime.recorder import Recorder
from otel_goodput._settings.options import Options, taking_options
from otel_goodput._text.redact import redacting_logger
from otel_goodput.errors import ConfigurationError
from otel_goodput.reports.report import Report

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = redacting_logger("otel_goodput")

C = TypeVar("C", bound=Callable[[], object])

_recorder: ProgramRecorder | None = None
_of_program: Options = {}  # options of `otel-goodput run`, for what configure() is not given
_failed = False  # configure() has said that nothing is recorded
_rehearsing = ""  # the job's name, if configure() was called while a child process imported its parent's main module


def _find() -> PhaseTracer | None:
    return None if _recorder is None else _recorder.tracer


class _Default(ProgramRecorder):
    """The recorder that the module-level functions act on, until ``configure()`` replaces it."""

    @staticmethod  # a decorated function that is sent to a worker does not bring us along
    def _successor() -> PhaseTracer | None:
        return _find()


@contextmanager
def replaced(job_name: str, options: Options) -> Iterator[None]:
    """In this block the functions act on another recorder, of this job, or on the one that is configured there."""
    global _recorder
    before, _recorder = _recorder, _Default(job_name, **options)
    try:
        yield
    finally:
        _recorder.shutdown()
        _recorder = before


def disabled() -> bool:
    """Whether OpenTelemetry is switched off."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() in TRUE


def imported_again() -> bool:
    """Whether a spawned child of multiprocessing is still importing its parent's modules.

    Module-level code without ``if __name__ == "__main__"`` then runs again, but it is meant for the parent only.
    """
    process = sys.modules.get("multiprocessing.process")
    return process is not None and bool(getattr(process.current_process(), "_inheriting", False))


@taking_options
def configure(job_name: str | None = None, *, set_global: bool = False, **options: Unpack[Options]) -> Recorder | None:
    """Start recording; call it once, before training.

    With ``OTEL_SDK_DISABLED=true`` nothing is recorded and None is returned. The same holds while a spawned child (of
    multiprocessing, such as a loader's worker) imports its parent's main module again. A call in the child's own
    target function is recorded. If recording cannot start for any reason but an invalid argument, that is logged and
    None is returned; training continues.

    Args:
        job_name: name of the job; by default ``OTEL_SERVICE_NAME``, else the script's name.
        {options}
        set_global: whether to make the recorder's providers OpenTelemetry's global ones.

    Raises:
        ConfigurationError: an argument is wrong. (A wrong environment variable is only logged as a warning.)
        TypeError: an argument is unknown.
    """
    global _recorder, _rehearsing, _failed
    if imported_again():
        _rehearsing = str(plain.text(job_name) or "my-job")
        return None
    if disabled():
        return None
    if _recorder is not None and _recorder.withdrawable:
        _recorder.withdraw()
    elif _recorder is not None:
        if not (_recorder.closed or host.current.in_memory):
            logger.warning("configure() was called again: the previous recorder is shut down")
        _recorder.shutdown()
    given = cast("Options", {**_of_program, **{name: value for name, value in options.items() if value is not None}})
    try:
        _recorder = recorder = _Default(job_name, **given)
        _failed = False
        if set_global:
            trace_api.set_tracer_provider(recorder.tracer_provider)
            metrics_api.set_meter_provider(recorder.meter_provider)
    except ConfigurationError:
        raise
    except Exception as error:  # of ours, of OpenTelemetry, or of the system: training starts all the same
        _failed = True
        contain("configure(), so nothing is recorded", error)
        return None
    return recorder


def begin_program(job_name: str | None, begun: int, options: Options) -> ProgramRecorder | None:
    """Record the whole program, which began at `begun` (ns since the epoch), in one job.

    If it calls ``configure()`` before its first phase, nothing of this is left but `options`, which then count for what
    that is not given. Returns None if nothing is recorded. Raises ConfigurationError.
    """
    global _recorder, _of_program
    if imported_again() or disabled() or _recorder is not None:
        return None
    _of_program = options
    try:
        _recorder = recorder = _Default(job_name, begun, **options)
    except ConfigurationError:
        raise
    except Exception as error:
        contain("the recording of the program", error)
        return None
    return recorder


def recording_now() -> ProgramRecorder | None:
    """Return the recorder in use, without asking it who this process is."""
    return _recorder


@forgiving
def totals() -> Totals | None:
    """Return the account as of now, in integers of ns; None before ``configure()``."""
    return None if _recorder is None else _recorder.totals()


@forgiving
def report() -> Report | None:
    """Return the account as of now, as text (``str()``), JSON (``to_json()``) or a page (``html(path)``).

    None before ``configure()``.
    """
    if _recorder is None:
        if not (_rehearsing or _failed or disabled()):
            text = 'report() before configure(): nothing is recorded. Write `goodput.configure("my-job")` first.'
            report_once("report", text)
        return None
    return _recorder.report()


@forgiving
def flush(timeout: float | None = None) -> bool:
    """Export everything recorded so far; returns False if not everything was exported in time.

    Waits for the network, so do not call it in the training loop.

    Args:
        timeout: in seconds; by default the grace period.
    """
    return True if _recorder is None else _recorder.flush(timeout)


@forgiving
def shutdown(timeout: float | None = None) -> None:
    """Stop recording: end open phases and mark them as interrupted, export, and write the journal.

    Called automatically at exit. Afterwards phases are no-ops.

    Args:
        timeout: one deadline for all of it, in seconds; by default the grace period.
    """
    if _recorder is not None:
        _recorder.shutdown(timeout)


@forgiving
def on_preemption(callback: C) -> C:
    """Call `callback` (no arguments) when the platform announces the job's end: a preemption, maintenance, SIGTERM.

    It runs in its own thread while training continues, and should return within the grace period. Also usable as a
    decorator: returns `callback`. Before ``configure()`` it only logs a warning.

    Args:
        callback: what to call.
    """
    if not callable(callback):  # which a type checker would have said
        return not_callable(callback, on_preemption)  # type: ignore[unreachable]
    if _recorder is not None:
        return _recorder.on_preemption(callback)
    if not _rehearsing:
        logger.warning("on_preemption() before configure() has no effect")
    return callback


@forgiving
def checkpoint_logger() -> Any:
    """Return a logger for Orbax's ``CheckpointManager(logger=…)``, for use without the automatic hook.

    May be called before ``configure()``.
    """
    from otel_goodput._integrations import orbax

    return orbax.checkpoint_logger(_find, lambda: _recorder is not None and _recorder.config.leads)


def count_flops(function: Callable[..., Any], *args: Any, **kwargs: Any) -> int | None:
    """Count the model's floating-point operations in one call of `function`, for the program goodput (MFU).

    Traces the function with jax, without running it. Returns None if there is nothing to count, and before
    ``configure()``. The peak is that of the devices, unless ``peak_flops=`` was given.

    Args:
        function: one step.
        args, kwargs: what it is called with.
    """
    return None if _recorder is None else _recorder.count_flops(function, *args, **kwargs)


def _say_child() -> None:
    """In a child process that trains without a recorder of its own, report once that nothing is recorded."""
    if _recorder is not None:
        _recorder.warn_if_forked()
    elif _rehearsing and not imported_again():
        report_once(
            "spawned",
            "this process was started by multiprocessing, and configure() at the top of the script is for the parent "
            "only: it records nothing. If it trains, call configure(%r, process_index=…, process_count=…) in the "
            "function that it runs",
            _rehearsing,
        )


_phases = Phases(_find, _say_child)

job = _phases.job
accelerator_init = _phases.accelerator_init
training_prep = _phases.training_prep
data_loading = _phases.data_loading
step = _phases.step
steps = _phases.steps
observe = _phases.observe
current_step = _phases.current_step
loading = _phases.loading
part = _phases.part
traced_step = _phases.traced_step
checkpoint_save = _phases.checkpoint_save
checkpoint_restore = _phases.checkpoint_restore
custom = _phases.custom
elastic_wait = _phases.elastic_wait
elastic_reinit = _phases.elastic_reinit
exclusion = _phases.exclusion
slice_counts = _phases.slice_counts
