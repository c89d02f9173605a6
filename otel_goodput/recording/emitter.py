"""The way out for spans that no SDK tracer has made: steps, loads, parts, compilations, summaries, roots."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry import trace as trace_api
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_goodput.semconv import SCOPE_NAME
from otel_goodput.version import __version__


class SpanEmitter:
    """Hands spans to the span processors of the exporters.

    Args:
        processors: those that take finished spans.
        resource: of the spans.

    Attributes:
        scope: ours.
    """

    def __init__(self, processors: Sequence[SpanProcessor], resource: Resource) -> None:
        self.resource = resource
        self.scope = InstrumentationScope(SCOPE_NAME, __version__)
        self._processors = tuple(processors)
        self._starters = tuple(each for each in processors if _hears_starts(each))

    def announce(self, span: trace_api.Span, within: Context) -> None:
        """A span begins that will be emitted, in the context `within`."""
        for processor in self._starters:
            processor.on_start(span, within)  # type: ignore[arg-type]

    def emit(self, span: ReadableSpan) -> None:
        """A span has ended."""
        for processor in self._processors:
            processor.on_end(span)

    def close(self) -> None:
        """Emit no more."""
        self._processors = ()


def _hears_starts(processor: SpanProcessor) -> bool:
    """Whether it does something when a span begins; the SDK's exporting processors override that with nothing."""
    kind = type(processor)
    return kind.on_start is not SpanProcessor.on_start and not kind.__module__.startswith("opentelemetry.sdk.trace")
