"""Steps and phases of a run as plain records, the slowest steps, and columns for DataFrames."""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeAlias, get_type_hints

from otel_goodput._accounting.overview import NOT_KNOWN
from otel_goodput._journal.facts import Facts
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import format_duration, format_moment, plural
from otel_goodput.reports.detail import FAILED, IN_TRACE, INTERRUPTED, NONBLOCKING, OUTLIER, RECOMPILATION, Detail
from otel_goodput.semconv import PHASES, ClockState

FATES: Final = ("kept", "lost", "in_flight", "not_done", "skipped")
"""Of a step: it counts; it was lost or trained again; it is not over; a break left it before it did a step's work; it
is none, but a batch that the loop skipped after a restore."""
_CLOCKS: Final = (ClockState.DEVICE, ClockState.HOST, ClockState.UNKNOWN)


class StepRecord(NamedTuple):
    """One execution of a step. Moments are ns since the epoch, by the account's clock.

    Attributes:
        attempt: number of the attempt, from 1.
        step: the step's number by the account.
        step_given: the number that its loop gave it, which is that of its span. It differs from `step` after a restore
            if the loop numbers its steps otherwise (rule R4).
        start_ns, end_ns: of its phase on the host; `end_ns` is None while it is open, or if the process died in it.
        net_ns: its own time: without data loading, saves and the like within it (rule R3).
        device_start_ns, device_end_ns: of its work on the device; None if that was not observed.
        fate: one of ``FATES``.
        clock: where its end is from: ``device``, ``host``, or ``unknown``.
        failed: it was left by an exception.
        outlier: it took far longer than the steps before it.
        interrupted: the process died, or stopped, while it was open.
        exported: it has a span of its own in the trace.
        span_id: 16 hexadecimal digits.
    """

    attempt: int
    step: int
    step_given: int
    start_ns: int
    end_ns: int | None
    net_ns: int
    device_start_ns: int | None
    device_end_ns: int | None
    fate: str
    clock: str
    failed: bool
    outlier: bool
    interrupted: bool
    exported: bool
    span_id: str


class PhaseRecord(NamedTuple):
    """One phase other than a step. Moments are ns since the epoch, by the account's clock.

    Attributes:
        attempt: number of the attempt, from 1.
        phase: what it is, one of ``semconv.PHASES``.
        name: of a custom phase or a part of a step, the compiled function, or why an elastic job waited; else empty.
        start_ns, end_ns: `end_ns` is None while it is open, or if the process died in it.
        step: the step that it belongs to; None if there is none.
        blocking: training waited for it.
        failed, interrupted, exported: as those of a step.
        recompiled: the function had been compiled before in this attempt.
        span_id, parent_id: 16 hexadecimal digits; `parent_id` is None if it is right below the job.
    """

    attempt: int
    phase: str
    name: str
    start_ns: int
    end_ns: int | None
    step: int | None
    blocking: bool
    failed: bool
    interrupted: bool
    exported: bool
    recompiled: bool
    span_id: str
    parent_id: str | None


class AttemptRecord(NamedTuple):
    """What one attempt ran with. Secrets in values are hidden.

    Attributes:
        attempt: number of the attempt, from 1.
        started_ns: when it called ``configure()``, ns since the epoch.
        program: base name of the script.
        settings: values of this package's settings, by name of the variable.
        versions: of Python, this package and libraries in use, by name.
        hyperparameters: given to ``configure()``, nested names joined by dots.
        resource: attributes of the resource.
    """

    attempt: int
    started_ns: int
    program: str
    settings: Mapping[str, str]
    versions: Mapping[str, str]
    hyperparameters: Mapping[str, str | bool | int | float | None]
    resource: Mapping[str, str | bool | int | float | None]


def attempts(facts: Iterable[Facts]) -> Iterator[AttemptRecord]:
    """Yield the facts of attempts as records."""
    for one in facts:
        settings = {name: value for name, (value, _) in one.settings.items()}
        number = one.attempt + 1
        yield AttemptRecord(
            number, one.started_at, one.program, settings, one.versions, one.hyperparameters, one.resource
        )


def steps(detail: Detail) -> Iterator[StepRecord]:
    """Yield the steps of a detail as records."""
    for one in detail.steps:
        times = one.begin, _known(one.end), one.net, _known(one.device_begin), _known(one.device_end)
        bits = one.flags
        flags = bool(bits & FAILED), bool(bits & OUTLIER), bool(bits & INTERRUPTED), bool(bits & IN_TRACE)
        fate, clock, span_id = FATES[one.fate], _CLOCKS[one.clock], f"{one.key:016x}"
        yield StepRecord(one.attempt, one.number, one.given, *times, fate, clock, *flags, span_id)


def phases(detail: Detail) -> Iterator[PhaseRecord]:
    """Yield the phases of a detail as records."""
    for one in detail.phases:
        step = one.step if one.step >= 0 else None
        bits = one.flags
        flags = bool(bits & FAILED), bool(bits & INTERRUPTED), bool(bits & IN_TRACE), bool(bits & RECOMPILATION)
        ids = f"{one.key:016x}", f"{one.parent:016x}" if one.parent else None
        times, blocking = (one.begin, _known(one.end)), not bits & NONBLOCKING
        yield PhaseRecord(one.attempt, PHASES[one.phase], one.name, *times, step, blocking, *flags, *ids)


def _known(moment: int) -> int | None:
    return None if moment == NOT_KNOWN else moment


# --- the slowest steps ------------------------------------------------------------------------------------------------

_KEPT: Final = FATES[0]
_SKIPPED: Final = FATES[4]


class Slowest(NamedTuple):
    """The steps with the longest net times, the longest first."""

    steps: Sequence[StepRecord]  # lost ones included
    median: float  # of the net times of all kept steps of the run, ns; 0 if none is kept

    def to_json(self) -> list[dict[str, Any]]:
        """Return the steps; ``start`` is in seconds since the epoch."""
        return [
            {
                "step": one.step,
                "attempt": one.attempt,
                "start": one.start_ns / NS,
                "net_s": one.net_ns / NS,
                "fate": one.fate,
            }
            for one in self.steps
        ]

    def lines(self) -> Iterator[str]:
        """Yield the table for people."""
        yield ""
        if not self.steps:
            yield "  no step has started"
            return
        yield f"  the {plural(len(self.steps), 'slowest step').removeprefix('1 ')}, by net time:"
        for one in self.steps:
            ratio = f"  {one.net_ns / self.median:8.1f} x median" if self.median else ""
            fate = "" if one.fate == _KEPT else f"  {one.fate.replace('_', ' ')}"
            length, began = format_duration(one.net_ns / NS), format_moment(one.start_ns / NS)
            yield f"    step {one.step:<9} {length:>10}{ratio}  began {began}, attempt {one.attempt}{fate}"


def slowest(detail: Detail, count: int) -> Slowest:
    """Return the `count` slowest steps of a detail."""
    executed = [one for one in steps(detail) if one.fate != _SKIPPED]
    kept = [one.net_ns for one in executed if one.fate == _KEPT]
    longest = heapq.nlargest(count, executed, key=lambda one: one.net_ns)
    return Slowest(longest, statistics.median(kept) if kept else 0.0)


# --- DataFrames -------------------------------------------------------------------------------------------------------

Rows: TypeAlias = "Iterable[StepRecord | PhaseRecord]"
Kind: TypeAlias = "type[StepRecord | PhaseRecord]"

_LENGTHS: Final = frozenset({"net_ns"})
# By library, the names of its types for those of fields; others are texts.
FRAMES: Final[Mapping[str, Mapping[Any, str]]] = {
    "pandas": {int: "int64", int | None: "Int64", bool: "bool"},
    "polars": {int: "Int64", int | None: "Int64", bool: "Boolean"},
}


def data_frame(rows: Rows, kind: Kind, library: str) -> Any:
    """Return records as a DataFrame of pandas or polars; moments are times in UTC, to the ns, and lengths seconds."""
    module, names = import_module(library), FRAMES[library]

    def moments(values: list[Any]) -> Any:
        if library == "polars":
            return module.Series(values, dtype=module.Int64).cast(module.Datetime("ns", "UTC"))
        return module.Series(module.to_datetime(module.array(values, dtype="Int64"), unit="ns", utc=True))

    def plain(values: list[Any], kind: Any) -> Any:
        if library == "polars":
            return module.Series(values, dtype=getattr(module, names.get(kind, "String")))
        return module.Series(values, dtype=names.get(kind, "object"))

    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in kind._fields]
    types = get_type_hints(kind)
    frame = {}
    for name, values in zip(kind._fields, columns, strict=True):
        if name in _LENGTHS:
            frame[name.replace("_ns", "_s")] = plain(values, int) / 1e9
        elif name.endswith("_ns"):
            frame[name.removesuffix("_ns")] = moments(values)
        else:
            frame[name] = plain(values, types[name])
    return module.DataFrame(frame)
