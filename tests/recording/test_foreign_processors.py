"""Span processors of the user's own beside ours: what they are told, and what their errors do to the account."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Span, SpanProcessor

from otel_goodput import Recorder

from .recording import NS, without_zeros


class Refusing(SpanProcessor):
    """Raises where a span with one of these names begins."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if span.name in self.names:
            raise KeyError(span.name)


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_GOODPUT_STRICT")


def recorder(directory: Path, *processors: SpanProcessor, **options: Any) -> Recorder:
    return Recorder("line", run_id="run", directory=directory, exporters="none", span_processors=processors, **options)


@pytest.mark.usefixtures("lenient")
def test_a_phase_whose_start_another_processor_refused_is_closed(tmp_path: Path, base: int) -> None:
    """Ours has heard of it by then, and would give it all time until the shutdown."""
    with recorder(tmp_path, Refusing("eval")) as line, line.job(start_time=base, end_time=base + 60 * NS):
        with line.custom("eval", start_time=base + NS):
            pass
        assert line.tracer is not None
        assert [span.name for span in line.tracer.spans.phases.values()] == ["job"]


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("wrong", ["refused by a processor", "without a name"])
def test_a_first_phase_that_is_not_recorded_leaves_the_job_begun_for_it_open(
    wrong: str, tmp_path: Path, base: int
) -> None:
    """The job begins at the same moment, and must not be taken for the phase."""
    with recorder(tmp_path, Refusing("eval")) as line:
        with line.custom("eval" if wrong == "refused by a processor" else "", start_time=base):
            pass
        with line.job(end_time=base + 60 * NS), line.training_prep(start_time=base + NS, end_time=base + 31 * NS):
            pass
        report = without_zeros(line.report().to_json())
    assert report["seconds"]["training_prep"] == 30.0 and report["elapsed_s"] == 60.0
