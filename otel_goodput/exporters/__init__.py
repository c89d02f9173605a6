"""The outlets: where spans and metrics go. Each is a module of this package, imported only when it is asked for."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

from otel_goodput.deadline import Ending
from otel_goodput.envvars import OTEL_GOODPUT_DIR
from otel_goodput.errors import ConfigurationError, GoodputError

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = ["OUTLETS", "Outlet", "OutletUnavailable", "Surroundings", "dropped_items", "open_outlet", "resolve"]

# name -> "module:function"; the function takes the Surroundings and gives an Outlet.
OUTLETS: Final[dict[str, str]] = {
    "console": "otel_goodput.exporters.console:open_console",
    "file": "otel_goodput.exporters.file:open_file",
    "gcp": "otel_goodput.exporters.gcp:open_gcp",
    "gcp-otlp": "otel_goodput.exporters.gcp:open_gcp_otlp",
    "otlp": "otel_goodput.exporters.otlp:open_otlp",
    "workload": "otel_goodput.exporters.gcp:open_workload",
}

# By what number the journal knows an outlet that takes spans. Once given, for good: runs are gone on with by others.
# Below 32 are places in the list of outlets, which older versions wrote.
NUMBERS: Final[dict[str, int]] = {"console": 32, "file": 33, "gcp": 34, "gcp-otlp": 35, "otlp": 36, "workload": 37}

# The extra of this distribution that an outlet needs; the others need none.
EXTRAS: Final[dict[str, str]] = {"gcp": "gcp", "gcp-otlp": "gcp-otlp", "otlp": "otlp", "workload": "gcp"}

AUTO: Final = "auto"
NONE: Final = "none"


class Outlet(NamedTuple):
    """One opened outlet.

    `interval_ms` is the period of the outlet's metric reader; None is the standard OTEL_METRIC_EXPORT_INTERVAL.
    """

    name: str
    span_exporter: SpanExporter | None
    metric_exporter: MetricExporter | None
    interval_ms: float | None = None


@dataclass(frozen=True)
class Surroundings:
    """What an outlet may know about the process it exports for.

    `attempt` counts from 0; `run_started` is when the first one began (unix ns, None: not known); `ending` tells when
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
    ending: Ending = field(default_factory=Ending, repr=False)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    stream: TextIO | None = None


class OutletUnavailable(GoodputError):
    """The outlet cannot be opened here. `hint` says what would change that; it may be empty."""

    def __init__(self, name: str, reason: str, hint: str = "") -> None:
        super().__init__(f"outlet {name!r} is not available: {reason}" + (f"; {hint}" if hint else ""))
        self.name = name
        self.reason = reason
        self.hint = hint


def open_outlet(name: str, surroundings: Surroundings) -> Outlet:
    """Open the outlet of that name, its exporters silent in forked children and never raising.

    Raises ConfigurationError (a ValueError) for a name nobody knows, and OutletUnavailable for one that cannot be
    opened here and now.
    """
    if name not in OUTLETS:
        raise ConfigurationError(_unknown(name))
    module, _, function = OUTLETS[name].partition(":")
    try:
        outlet: Outlet = getattr(importlib.import_module(module), function)(surroundings)
    except OutletUnavailable:
        raise
    except ImportError as error:
        extra = EXTRAS.get(name)
        hint = f"pip install 'otel-goodput[{extra}]'" if extra else ""
        raise OutletUnavailable(name, str(error), hint) from error
    except Exception as error:  # an exporter's constructor may refuse a variable of its own in any way it likes
        raise OutletUnavailable(name, f"{type(error).__name__}: {error}") from error

    from otel_goodput.exporters.fence import MetricFence, SpanFence

    return outlet._replace(
        span_exporter=outlet.span_exporter and SpanFence(name, outlet.span_exporter),
        metric_exporter=outlet.metric_exporter and MetricFence(name, outlet.metric_exporter),
    )


def dropped_items(outlet: Outlet) -> dict[str, int]:
    """Spans (`traces`) and data points (`metrics`) that an outlet of :func:`open_outlet` failed to export so far."""
    fences = {"traces": outlet.span_exporter, "metrics": outlet.metric_exporter}
    return {signal: getattr(fence, "dropped", 0) for signal, fence in fences.items() if fence is not None}


def resolve(
    names: Sequence[str],
    environ: Mapping[str, str],
    *,
    directory: Path | None = None,
    stream: TextIO | None = None,
) -> tuple[str, ...]:
    """The names of the outlets to open: `auto` expanded, `none` taken out, each name once, in the order given.

    `auto` is `otlp` where an OTLP endpoint is configured; on Google Cloud, or where a project or another address for
    it is configured, `gcp` (unless there is an OTLP endpoint, which then takes spans and metrics) and `workload`; all
    of them where they can be imported. Further `file` where a directory is known (`directory`, else a local path in
    OTEL_GOODPUT_DIR), and `console` where `stream` (None: stderr) is a terminal and nobody types at this interpreter.
    Raises ConfigurationError (a ValueError) for an unknown name, and for `none` beside others.
    """
    wanted = [name.strip().lower() for name in names if name.strip()]
    for name in wanted:
        if name not in (*OUTLETS, AUTO, NONE):
            raise ConfigurationError(_unknown(name))
    if NONE in wanted:
        if set(wanted) != {NONE}:
            raise ConfigurationError(f"outlet {NONE!r} excludes all others, got {', '.join(wanted)}")
        return ()
    found: dict[str, None] = {}
    for name in wanted:
        found.update(dict.fromkeys(_auto(environ, directory, stream) if name == AUTO else (name,)))
    return tuple(found)


def _auto(environ: Mapping[str, str], directory: Path | None, stream: TextIO | None) -> list[str]:
    from otel_goodput.exporters.gcp.connection import on_google_cloud
    from otel_goodput.exporters.gcp.translation import PACKAGES, WORKLOAD_PACKAGE
    from otel_goodput.exporters.otlp import EXPORTER_MODULES, SIGNALS, protocol, variables

    names = []
    if any(environ.get(variable) for signal in SIGNALS for variable in variables(signal, "ENDPOINT")):
        packages = {EXPORTER_MODULES[protocol(environ, signal)] for signal in SIGNALS}
        if all(importable(package) for package in packages):
            names.append("otlp")
    if on_google_cloud(environ):
        if not names and all(map(importable, PACKAGES)):
            names.append("gcp")
        if importable(WORKLOAD_PACKAGE):
            names.append("workload")
    configured = environ.get(OTEL_GOODPUT_DIR.name, "")
    if directory is not None or (configured and "://" not in configured):
        names.append("file")
    from otel_goodput.exporters.status_line import is_interactive

    if is_terminal(stream if stream is not None else sys.stderr) and not is_interactive():
        names.append("console")
    return names


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person may be looking; a closed stream, or none (a daemon's stderr), is no terminal."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def importable(module: str) -> bool:
    """Whether a package is installed; it is not imported."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a parent package is missing, or blocked in sys.modules
        return False


def _unknown(name: str) -> str:
    return f"unknown outlet {name!r}; known are {', '.join((AUTO, NONE, *OUTLETS))}"
