"""The description of an exporter, and the context in which it is opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

from otel_goodput._runtime.deadline import ShutdownSignal
from otel_goodput._runtime.installation import install_command
from otel_goodput.errors import GoodputError

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.trace.export import SpanExporter

    from otel_goodput.exporters.otlp_variables import Endpoint

__all__ = [
    "METRICS",
    "SIGNALS",
    "TRACES",
    "Destination",
    "ExporterContext",
    "ExporterSpec",
    "ExporterUnavailable",
    "Exporters",
    "Situation",
]

TRACES: Final = "traces"
METRICS: Final = "metrics"
SIGNALS: Final = (TRACES, METRICS)


class Exporters(NamedTuple):
    """An opened exporter: one of the SDK's exporters for each signal that it takes.

    `interval_ms` is the period of its metric reader (None: the standard OTEL_METRIC_EXPORT_INTERVAL). `number`
    identifies it in the journal; the code that opens the exporter sets it. `project` returns, without waiting, the
    project of Google Cloud that its spans go to; empty if they do not, or if that is not known yet.
    """

    name: str
    span_exporter: SpanExporter | None
    metric_exporter: MetricExporter | None
    interval_ms: float | None = None
    number: int = 0
    project: Callable[[], str] = str

    def by_signal(self) -> dict[str, Any]:
        both = zip(SIGNALS, (self.span_exporter, self.metric_exporter), strict=True)
        return {signal: each for signal, each in both if each is not None}


@dataclass(frozen=True)
class ExporterContext:
    """What an exporter may know about the process that it exports for.

    `attempt` counts from 0; `stopping` tells when the process stops; `directory` is where files may be written (None:
    nowhere); `stream` is where lines for people are written (None: the stderr of that time). `environ` determines
    OTLP's protocol and timeout; OpenTelemetry's exporters read their other variables from the process's own
    environment.
    """

    job_name: str
    run_id: str
    attempt: int = 0
    process_index: int = 0
    directory: Path | None = None
    grace_period_s: float = 10.0
    stopping: ShutdownSignal = field(default_factory=ShutdownSignal, repr=False)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    stream: TextIO | None = None


class Situation(NamedTuple):
    """What `auto` decides by: where the process runs, and the names of the exporters chosen so far."""

    environ: Mapping[str, str]
    directory: Path | None
    stream: TextIO | None
    chosen: Sequence[str] = ()


class Destination(NamedTuple):
    """Where a signal (``traces`` or ``metrics``) goes, as text for people."""

    signal: str
    place: str


def _never(_: Situation) -> str:
    return ""


@dataclass(frozen=True)
class ExporterSpec:
    """The description of an exporter, for ``configure()``, ``auto``, ``otel-goodput doctor`` and the README's table.

    Other packages register theirs in the entry point group ``otel_goodput.exporters``::

        [project.entry-points."otel_goodput.exporters"]
        mine = "my_package:MINE"

    Attributes:
        name: its name in settings, in lower case.
        brief: what it is, one line of Markdown.
        open: opens it, without waiting for anything; may raise :class:`ExporterUnavailable` and ImportError.
        describe: returns where each signal goes; called without opening anything, also in a process that is not a job.
        signals: the signals that it takes, of ``traces`` and ``metrics``.
        extra: the extra of otel-goodput that installs its packages; empty if it needs none or is not ours.
        packages: returns the modules that it needs, given the environment. They are looked up, not imported, before it
            is opened.
        auto: returns why `auto` chooses it; empty if `auto` does not.
        number: identifies it in the journal, 32 to 63, and never changes. None: it is derived from the name.
        endpoints: returns the OTLP endpoint of each signal, given the environment; ``otel-goodput doctor`` connects to
            them, and has the opened exporters send nothing to them.
        local: what it writes stays on this machine.
    """

    name: str
    brief: str
    open: Callable[[ExporterContext], Exporters]
    describe: Callable[[ExporterContext], Sequence[Destination]]
    signals: Sequence[str] = SIGNALS
    extra: str = ""
    packages: Callable[[Mapping[str, str]], Sequence[str]] = lambda _: ()
    auto: Callable[[Situation], str] = _never
    number: int | None = None
    endpoints: Callable[[Mapping[str, str]], Sequence[Endpoint]] = lambda _: ()
    local: bool = False

    @property
    def automatic(self) -> bool:
        """Whether `auto` may choose it."""
        return self.auto is not _never

    @property
    def hint(self) -> str:
        """The command that installs its packages; empty if not known."""
        return install_command(self.extra) if self.extra else ""


class ExporterUnavailable(GoodputError):
    """The exporter cannot be opened in this process. `hint` says what would help; it may be empty."""

    def __init__(self, name: str, reason: str, hint: str = "") -> None:
        super().__init__(f"exporter {name!r} is not available: {reason}" + (f"; {hint}" if hint else ""))
        self.name = name
        self.reason = reason
        self.hint = hint
