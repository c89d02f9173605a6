"""What a step, a load or a part is as a span: its identity, and what its user sets on it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from opentelemetry import context as context_api
from opentelemetry import trace as trace_api
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import Event as SpanEvent
from opentelemetry.trace import Link, SpanContext, Status, StatusCode
from opentelemetry.util import types

from otel_goodput.recording.admission import Gate
from otel_goodput.recording.observation import Observation
from otel_goodput.semconv import ERROR_TYPE, GOODPUT_PART_NAME, GOODPUT_PHASE, GOODPUT_STEP

# Attributes that say what a phase is, from its begin on.
_SETTLED = frozenset({GOODPUT_PHASE, GOODPUT_STEP, GOODPUT_PART_NAME})
_LIMIT = 128  # attributes, and events: the SDK's own default
_UNSET = Status(StatusCode.UNSET)


def error_name(error: type[BaseException] | BaseException) -> str:
    """`error.type` as the semantic conventions have it: the qualified name of the exception's class."""
    kind = error if isinstance(error, type) else type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class ShortSpan(trace_api.Span):
    """The record of one step, load or part; :class:`~otel_goodput.recording.fast_span.FastSpan` opens and closes it.

    Setters follow OpenTelemetry's contract: they never raise and do nothing after the end.

    Attributes:
        step: its number; ``NO_STEP``: none, or not known yet.
        title, label: what its user calls a part, and the journal's number of that.
        gate: of a load or part that is left out for there are too many.
        thread: where it was opened, of one that is exported whatever happens.
        observation: what tells when it left the device.
        in_loop: it is a step of ``steps()``.
        saved: a checkpoint was saved in it.
        undone: it ended without having been done: its number may be used again.
    """

    # What most spans never have stays with the class: an instance stores only what is its own.
    step: int
    label = 0
    title = ""
    gate: Gate | None = None
    thread = 0
    observation: Observation | None = None
    in_loop = False
    saved = False
    undone = False
    _phase: int
    _blocking: bool | None
    _key = 0
    _start = 0
    _ended = True  # until it is entered
    _sampled = False
    _keep = False
    _name: str | None = None
    _attributes: BoundedAttributes | None = None
    _events: list[SpanEvent] | None = None
    _links: list[Link] | None = None
    _status = _UNSET
    _within: context_api.Context = context_api.Context()

    # --- identity -----------------------------------------------------------------------------------------------------

    @property
    def key(self) -> int:
        """Its span id."""
        return self._key

    @property
    def phase(self) -> int:
        """Index into ``semconv.PHASES``."""
        return self._phase

    @property
    def start_time(self) -> int:
        """ns since the epoch."""
        return self._start

    @property
    def sampled(self) -> bool:
        """Whether it goes to the exporters whatever happens in it."""
        return self._sampled or self._keep

    @property
    def closed(self) -> bool:
        """Whether it has ended; or has not begun."""
        return self._ended

    @property
    def blocks(self) -> bool:
        """Whether it holds up training, once it has begun."""
        return self._blocking is not False

    @property
    def said_blocking(self) -> bool | None:
        """What its user said of that; once it has begun beside training, False."""
        return self._blocking

    @property
    def within(self) -> context_api.Context:
        """What was current when it was opened."""
        return self._within

    @property
    def around(self) -> trace_api.Span:
        """The span that it was opened in."""
        return trace_api.get_current_span(self._within)

    @property
    def error(self) -> str:
        """The ``error.type`` that it ended with; empty: none."""
        return str(self._attributes.get(ERROR_TYPE, "")) if self._attributes else ""

    def is_recording(self) -> bool:
        return not self._ended

    # --- what the recorder asks of it ---------------------------------------------------------------------------------

    @abstractmethod
    def parent(self) -> SpanContext | None:
        """The span around it; None where it is a root."""

    @abstractmethod
    def keep(self, *, paid: bool = False) -> None:
        """Export it: something worth seeing happens in it. `paid`: room for it is taken."""

    @abstractmethod
    def renumber(self, step: int) -> None:
        """Its step is known by now."""

    @abstractmethod
    def abandon(
        self, end: int, flags: int = 0, *, failed: bool = True, left: bool = False, took: int | None = None
    ) -> None:
        """End it at `end` (ns) without its owner."""

    @abstractmethod
    def now(self) -> int:
        """ns since the epoch."""

    @abstractmethod
    def refuse(self, key: str) -> None:
        """Its user would change what it is: the attribute `key` stays."""

    # --- the setters of a span ----------------------------------------------------------------------------------------

    def set_attribute(self, key: str, value: types.AttributeValue) -> None:
        if key in _SETTLED:
            self.refuse(key)
            return
        if self._attributes is None:
            self._attributes = BoundedAttributes(_LIMIT, immutable=False)
        self._attributes[key] = value

    def set_attributes(self, attributes: Mapping[str, types.AttributeValue]) -> None:
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def add_event(self, name: str, attributes: types.Attributes = None, timestamp: int | None = None) -> None:
        if self._events is None:
            self._events = []
        if len(self._events) < _LIMIT:
            moment = self.now() if timestamp is None else timestamp
            self._events.append(SpanEvent(name, BoundedAttributes(_LIMIT, attributes), moment))

    def add_link(self, context: SpanContext, attributes: types.Attributes = None) -> None:
        if self._links is None:
            self._links = []
        self._links.append(Link(context, attributes))

    def record_exception(
        self,
        exception: BaseException,
        attributes: types.Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        import traceback

        described: dict[str, types.AttributeValue] = {
            "exception.type": error_name(exception),
            "exception.message": str(exception),
            "exception.stacktrace": "".join(traceback.format_exception(exception)),
        }
        self.add_event("exception", {**described, **(attributes or {})}, timestamp)

    def update_name(self, name: str) -> None:
        self._name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        self._status = status if isinstance(status, Status) else Status(status, description)
