"""What every exporter says of itself, and what it is given to be opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

from otel_goodput.deadline import ShutdownSignal
from otel_goodput.errors import GoodputError

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.trace.export import SpanExporter

TRACES: Final = "traces"
METRICS: Final = "metrics"
SIGNALS: Final = (TRACES, METRICS)


class Exporters(NamedTuple):
    """An exporter, opened: one of the SDK's exporters for each signal that it takes.

    `interval_ms` is the period of its metric reader; None is the standard OTEL_METRIC_EXPORT_INTERVAL. The journal
    knows it by `number`, which is given by who opens it.
    """

    name: str
    span_exporter: SpanExporter | None
    metric_exporter: MetricExporter | None
    interval_ms: float | None = None
    number: int = 0


@dataclass(frozen=True)
class ExporterContext:
    """What an exporter may know about the process it exports for.

    `attempt` counts from 0; `run_started` is when the first one began (unix ns, None: not known); `stopping` tells when
    the process stops; `directory` is where files may be written (None: nowhere); `stream` is where lines for
    people go (None: stderr at the time). `environ` chooses OTLP's protocol and timeout; the rest of its variables
    OpenTelemetry's exporters read from the process's own environment.
    """

    job_name: str
    run_id: str
    attempt: int = 0
    run_started: int | None = None
    process_index: int = 0
    directory: Path | None = None
    grace_period_s: float = 10.0
    stopping: ShutdownSignal = field(default_factory=ShutdownSignal, repr=False)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    stream: TextIO | None = None


class Situation(NamedTuple):
    """What `auto` judges by: where it runs, and the names of the exporters that it has chosen already."""

    environ: Mapping[str, str]
    directory: Path | None
    stream: TextIO | None
    chosen: Sequence[str] = ()


class Destination(NamedTuple):
    """Where one signal goes, ``traces`` or ``metrics``, as a person would say it."""

    signal: str
    place: str


def _never(_: Situation) -> str:
    return ""


def _no_packages(_: Mapping[str, str]) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class ExporterSpec:
    """An exporter, as ``configure()``, ``auto``, ``otel-goodput doctor`` and the README's table know it.

    A package of yours registers one under the entry point group ``otel_goodput.exporters``::

        [project.entry-points."otel_goodput.exporters"]
        mine = "my_package:MINE"

    Attributes:
        name: by which it is asked for, lower case.
        brief: what it is, one line of Markdown.
        open: opens it, without waiting for anything; may raise :class:`ExporterUnavailable` and ImportError.
        describe: where each signal goes; called without opening anything, also in a process that is no job.
        signals: those that it takes, of ``traces`` and ``metrics``.
        extra: the extra of otel-goodput that installs what it needs; empty where it needs nothing or is not ours.
        packages: modules that it needs, given the environment. Looked for, not imported, before it is opened.
        auto: why it is chosen where nobody names exporters; empty where it is not.
        number: by what the journal knows it, once given for good, 32 to 63. None: one is made of the name.
    """

    name: str
    brief: str
    open: Callable[[ExporterContext], Exporters]
    describe: Callable[[ExporterContext], Sequence[Destination]]
    signals: Sequence[str] = SIGNALS
    extra: str = ""
    packages: Callable[[Mapping[str, str]], Sequence[str]] = _no_packages
    auto: Callable[[Situation], str] = _never
    number: int | None = None

    @property
    def hint(self) -> str:
        """What installs its packages, where that is known."""
        return f"pip install 'otel-goodput[{self.extra}]'" if self.extra else ""


class ExporterUnavailable(GoodputError):
    """The exporter cannot be opened here. `hint` says what would change that; it may be empty."""

    def __init__(self, name: str, reason: str, hint: str = "") -> None:
        super().__init__(f"exporter {name!r} is not available: {reason}" + (f"; {hint}" if hint else ""))
        self.name = name
        self.reason = reason
        self.hint = hint
