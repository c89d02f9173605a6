"""A recorder under test and everything that it left: spans, metrics, journal, report."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from otel_goodput import testing
from otel_goodput._accounting import Event
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._recording.finished import is_attempt
from otel_goodput._timeline.reader import all_events
from otel_goodput.reports.run import RecordedRun

NS = 1_000_000_000


def copied(folder: Path, place: Path) -> Path:
    """A copy of a run that may be alive: a file that it replaces meanwhile is not there to be copied any more."""
    return Path(shutil.copytree(folder, place, copy_function=_copy))


def _copy(source: str, place: str) -> None:
    with suppress(FileNotFoundError):
        shutil.copy2(source, place)


class Recording(testing.Recording):
    """What a recorder leaves in a folder.

    Attributes:
        folder: that of the run.
    """

    folder: Path

    def root(self) -> ReadableSpan:
        (span,) = filter(is_root, self.exported())
        return span

    def events(self) -> list[Event]:
        """What the journal holds, read back from the disk."""
        return list(all_events(RunDirectory(self.folder)))

    def report(self) -> dict[str, Any]:
        """The live answer, without the configurations of attempts, which are read in the background."""
        answer = self.recorder.report().to_json()
        answer.pop("configurations", None)
        return without_zeros(answer)

    def report_on_disk(self, **questions: Any) -> dict[str, Any]:
        """The answer from the journal, without the configurations of attempts."""
        answer = RecordedRun(RunDirectory(self.folder)).report(**questions).to_json()
        answer.pop("configurations", None)
        return without_zeros(answer)


def without_zeros(report: dict[str, Any]) -> dict[str, Any]:
    """A report has every category; of interest here are those that hold time."""
    for partition in (report, *report["windows"]):
        partition["seconds"] = {category: seconds for category, seconds in partition["seconds"].items() if seconds}
    return report


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def identity(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.trace_id


def is_root(span: ReadableSpan) -> bool:
    """Whether it is the root of an attempt's trace."""
    return is_attempt(span)


def orphans(spans: Sequence[ReadableSpan]) -> list[ReadableSpan]:
    """Spans whose parents were not exported."""
    known = {(trace_of(span), identity(span)) for span in spans}
    return [span for span in spans if span.parent and (span.parent.trace_id, span.parent.span_id) not in known]


def sum_ns(report: dict[str, Any]) -> int:
    """The categories' sum in whole ns."""
    seconds = {name: value for name, value in report["seconds"].items() if name != "custom"}
    return sum(round(value * NS) for value in (*seconds.values(), *report["seconds"].get("custom", {}).values()))


Record = Callable[..., Recording]
