"""The exporters, ours and those that other packages register, and which of them `auto` chooses."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO, TypeVar

from otel_goodput._runtime.deadline import Closer, close_all
from otel_goodput._runtime.guard import report_once
from otel_goodput.errors import ConfigurationError
from otel_goodput.exporters.spec import ExporterContext, Exporters, ExporterSpec, ExporterUnavailable, Situation
from otel_goodput.exporters.wrappers import SafeMetricExporter, SafeSpanExporter

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

GROUP: Final = "otel_goodput.exporters"

# Name -> its ExporterSpec, written as in an entry point. `auto` asks them in this order.
OURS: Final[dict[str, str]] = {
    "otlp": "otel_goodput.exporters.otlp:OTLP",
    "gcp": "otel_goodput.exporters.google:GCP",
    "gcp-otlp": "otel_goodput.exporters.google:GCP_OTLP",
    "workload": "otel_goodput.exporters.google:WORKLOAD",
    "file": "otel_goodput.exporters.file:FILE",
    "console": "otel_goodput.exporters.console:CONSOLE",
    "tensorboard": "otel_goodput.exporters.tensorboard:TENSORBOARD",
}

AUTO: Final = "auto"
NONE: Final = "none"

# The journal stores an exporter's number in a byte.
FIRST_OF_OTHERS: Final = 64
NUMBERS: Final = 256


@cache
def _others() -> dict[str, EntryPoint]:
    """Return the entry points of other packages by name; those with a name of ours are reported and ignored."""
    from importlib.metadata import entry_points  # a slow import

    registered = {point.name.lower(): point for point in entry_points(group=GROUP)}
    for name in registered.keys() & {*OURS, AUTO, NONE}:
        message = "the exporter %r that %s registers is ignored: this package has one of that name"
        report_once(f"exporter {name}", message, name, registered.pop(name).value)
    return registered


def names() -> tuple[str, ...]:
    """Return the names of all exporters."""
    return (*OURS, *_others())


@cache
def spec(name: str) -> ExporterSpec:
    """Return the spec of the exporter `name`. Raises ConfigurationError if the name is unknown.

    Raises ExporterUnavailable if another package registers it, and it cannot be imported or is not an ExporterSpec.
    """
    if name in OURS:
        module, _, attribute = OURS[name].partition(":")
        ours: ExporterSpec = getattr(importlib.import_module(module), attribute)
        return ours
    if name not in _others():
        raise ConfigurationError(f"unknown exporter {name!r}; known are {', '.join((AUTO, NONE, *sorted(names())))}")
    point = _others()[name]
    try:
        other = point.load()
    except Exception as error:
        raise ExporterUnavailable(name, f"{point.value}: {type(error).__name__}: {error}") from error
    if not isinstance(other, ExporterSpec):
        raise ExporterUnavailable(name, f"{point.value} is not an ExporterSpec")
    return other


def numbers(exporters: Iterable[str]) -> dict[str, int]:
    """Return the numbers that identify these exporters in the journal; the same names always give the same numbers."""
    exporters = tuple(exporters)
    by_name: dict[str, int] = {}
    for name in sorted(exporters):
        number = spec(name).number if name in OURS else None
        if number is None:
            number = FIRST_OF_OTHERS + zlib.crc32(name.encode()) % (NUMBERS - FIRST_OF_OTHERS)
            while number in by_name.values():
                number = number + 1 if number + 1 < NUMBERS else FIRST_OF_OTHERS
        by_name[name] = number
    return {name: by_name[name] for name in exporters}


def open_exporter(name: str, context: ExporterContext) -> Exporters:
    """Open the exporter `name`, wrapped so that it never raises and does nothing in forked children.

    Raises ConfigurationError if the name is unknown, ExporterUnavailable if it cannot be opened in this process.
    """
    described = spec(name)
    try:
        for package in described.packages(context.environ):
            if not importable(package):
                raise ExporterUnavailable(name, f"no module named {package!r}", described.hint)
        opened = described.open(context)
    except ExporterUnavailable:
        raise
    except ImportError as error:
        raise ExporterUnavailable(name, str(error), described.hint) from error
    except Exception as error:  # a constructor may raise anything for a variable that it rejects
        raise ExporterUnavailable(name, f"{type(error).__name__}: {error}") from error
    return opened._replace(
        name=name,
        span_exporter=opened.span_exporter and SafeSpanExporter(name, opened.span_exporter),
        metric_exporter=opened.metric_exporter and SafeMetricExporter(name, opened.metric_exporter, context.stopping),
    )


def shut_down(opened: Exporters, seconds: float) -> None:
    """Shut down what was opened, within `seconds`."""
    closers: list[tuple[str, Closer]] = [
        (f"{opened.name} {signal}", lambda _, each=each: each.shutdown())  # type: ignore[misc]
        for signal, each in opened.by_signal().items()
    ]
    close_all(closers, seconds)


def dropped_items(opened: Exporters) -> dict[str, int]:
    """Return how many spans (`traces`) and data points (`metrics`) an opened exporter has lost so far."""
    return {signal: getattr(each, "dropped", 0) for signal, each in opened.by_signal().items()}


def resolve(
    choice: Sequence[str], environ: Mapping[str, str], *, directory: Path | None = None, stream: TextIO | None = None
) -> tuple[str, ...]:
    """Return the names of the exporters to open: `auto` expanded, `none` removed, each name once, in the order given.

    `auto` stands for every exporter that gives a reason (:attr:`ExporterSpec.auto`) and whose packages are installed.
    `directory` is where files may be written (else a local path in OTEL_GOODPUT_DIR), `stream` is the stream that a
    person may read (None: stderr). Raises ConfigurationError if a name is unknown, or `none` is combined with others.
    """
    wanted = [name.strip().lower() for name in choice if name.strip()]
    for name in wanted:
        if name not in (*OURS, AUTO, NONE) and name not in _others():
            spec(name)  # raises, with the known names
    if NONE in wanted:
        if set(wanted) != {NONE}:
            raise ConfigurationError(f"exporter {NONE!r} cannot be combined with others, got {', '.join(wanted)}")
        return ()
    chosen: tuple[str, ...] = ()  # by `auto`
    for name in names() if AUTO in wanted else ():
        if reason(name, Situation(environ, directory, stream, chosen)) and not missing(name, environ):
            chosen += (name,)
    resolved = (each for name in wanted for each in (chosen if name == AUTO else (name,)))
    return tuple(dict.fromkeys(resolved))


def reason(name: str, situation: Situation) -> str:
    """Return why `auto` would choose the exporter, packages installed or not; empty if it would not."""
    return _contained(name, lambda: spec(name).auto(situation), "")


def missing(name: str, environ: Mapping[str, str]) -> list[str]:
    """Return the modules that the exporter needs and that are not installed."""
    return _contained(name, lambda: [each for each in spec(name).packages(environ) if not importable(each)], [name])


def _contained(name: str, call: Callable[[], T], otherwise: T) -> T:
    """Return what `call` returns; if it raises, because it is code of another package, leave the exporter out."""
    try:
        return call()
    except Exception as error:
        report_once(f"exporter {name}", "exporter %s is left out: %s: %s", name, type(error).__name__, error)
        return otherwise


def importable(module: str) -> bool:
    """Return whether a module is installed. Only its parent packages are imported."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a parent package is missing, or blocked in sys.modules
        return False
