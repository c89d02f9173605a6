"""Goodput of ML training, live and exact: training phases are OpenTelemetry spans, goodput and badput are metrics.

::

    import otel_goodput as goodput

    goodput.configure("llama3-8b")
    with goodput.job():
        for step, batch in goodput.steps(loader):
            state, loss = train_step(state, batch)
    print(goodput.report())
"""

from otel_goodput.default import (
    accelerator_init,
    checkpoint_restore,
    checkpoint_save,
    configure,
    custom,
    data_loading,
    elastic_reinit,
    elastic_wait,
    exclusion,
    flush,
    job,
    report,
    shutdown,
    slice_counts,
    step,
    steps,
    totals,
    training_prep,
)
from otel_goodput.errors import ConfigurationError, GoodputError, JournalError, PhaseError
from otel_goodput.runtime import Recorder
from otel_goodput.standalone import GoodputSpanProcessor
from otel_goodput.version import __version__

__all__ = [
    "ConfigurationError",
    "GoodputError",
    "GoodputSpanProcessor",
    "JournalError",
    "PhaseError",
    "Recorder",
    "__version__",
    "accelerator_init",
    "checkpoint_restore",
    "checkpoint_save",
    "configure",
    "custom",
    "data_loading",
    "elastic_reinit",
    "elastic_wait",
    "exclusion",
    "flush",
    "job",
    "report",
    "shutdown",
    "slice_counts",
    "step",
    "steps",
    "totals",
    "training_prep",
]
