"""Goodput of ML training, live and exact: training phases are OpenTelemetry spans, goodput and badput are metrics.

::

    import otel_goodput as goodput

    goodput.configure("llama3-8b")
    with goodput.job():
        for step, batch in goodput.steps(loader):
            state, loss = train_step(state, batch)
    print(goodput.report())

Importing this package loads nothing else: its modules and the OpenTelemetry SDK are loaded when a name is first used.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_goodput._runtime.recorder import Recorder
    from otel_goodput._runtime.standalone import GoodputSpanProcessor
    from otel_goodput.api import (
        accelerator_init,
        checkpoint_logger,
        checkpoint_restore,
        checkpoint_save,
        configure,
        count_flops,
        current_step,
        custom,
        data_loading,
        elastic_reinit,
        elastic_wait,
        exclusion,
        flush,
        job,
        loading,
        observe,
        on_preemption,
        part,
        report,
        shutdown,
        slice_counts,
        step,
        steps,
        totals,
        traced_step,
        training_prep,
    )
    from otel_goodput.errors import ConfigurationError, GoodputError, JournalError, PhaseError
    from otel_goodput.runs import Run, open_run, open_runs
    from otel_goodput.version import __version__

__all__ = [
    "ConfigurationError",
    "GoodputError",
    "GoodputSpanProcessor",
    "JournalError",
    "PhaseError",
    "Recorder",
    "Run",
    "__version__",
    "accelerator_init",
    "checkpoint_logger",
    "checkpoint_restore",
    "checkpoint_save",
    "configure",
    "count_flops",
    "current_step",
    "custom",
    "data_loading",
    "elastic_reinit",
    "elastic_wait",
    "exclusion",
    "flush",
    "job",
    "loading",
    "observe",
    "on_preemption",
    "open_run",
    "open_runs",
    "part",
    "report",
    "shutdown",
    "slice_counts",
    "step",
    "steps",
    "totals",
    "traced_step",
    "training_prep",
]

# Modules of the public names that are not in `api`. No module here may have the name of a public function: importing
# the module would replace the function.
_HOMES = {
    **dict.fromkeys(("ConfigurationError", "GoodputError", "JournalError", "PhaseError"), "errors"),
    **dict.fromkeys(("Run", "open_run", "open_runs"), "runs"),
    "GoodputSpanProcessor": "_runtime.standalone",
    "Recorder": "_runtime.recorder",
    "__version__": "version",
}


if not TYPE_CHECKING:  # otherwise a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(_imported(f"{__name__}.{_HOMES.get(name, 'api')}"), name)
        return value

    def _imported(module: str) -> object:
        """Import a module. OpenTelemetry reads a limit when it is imported, and a wrong one must not end a program."""
        try:
            return import_module(module)
        except ValueError as error:
            limit = "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"
            wrong = os.environ.pop(limit, None)
            if wrong is None:
                raise
            try:
                imported = import_module(module)
            finally:
                os.environ[limit] = wrong
            from otel_goodput._text.redact import redacting_logger  # no such text in a sound program

            redacting_logger(__name__).warning("%s is ignored: %s", limit, error)
            return imported


def load_ipython_extension(ipython: object) -> None:
    """Register the magic ``%goodput``, for ``%load_ext otel_goodput``."""
    import_module(f"{__name__}._programs.notebook").load(ipython)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
