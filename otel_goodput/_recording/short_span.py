"""The span of a step, data load or part: its identity, and the attributes, events and links that the user sets.

And the observation of when the work of steps leaves the device.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Event as SpanEvent
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.util import types

from otel_goodput._recording import plain
from otel_goodput._recording.departure import Place
from otel_goodput._recording.finished import UNSET
from otel_goodput._recording.nesting import SPAN_KEY, TOUCHED, Nested
from otel_goodput._recording.sampling import Gate
from otel_goodput._runtime.guard import guarded
from otel_goodput.semconv import ERROR_TYPE, GOODPUT_PART_NAME, GOODPUT_PHASE, GOODPUT_STEP, PHASES

# Attributes that identify the phase, and so cannot be changed after its begin.
_SETTLED = frozenset({GOODPUT_PHASE, GOODPUT_STEP, GOODPUT_PART_NAME})
_LIMIT = 128  # maximum number of attributes, and of events; the SDK's default


ALONE = (1, 0)  # the `place` of an output that is not a tree


class Observation:
    """Work in flight: `mark` becomes ready when all that was dispatched for `keys` has left the device.

    Attributes:
        keys: ids of the steps, in order, or of one mark.
        starts: when dispatching each began, ns.
        ends: when each ended on the host, ns; shorter than `keys` for what users observe.
        phase: index into ``semconv.PHASES``.
        mark: the mark, or the user's array, to watch; None: more steps may join, or the next observation's counts.
        place: (number of leaves, index of the array) in the observed output.
        own: `mark` is one of the device clock, or will be; not an array of the user.
        exclusive: nobody else holds `mark`, so that a thread may wait for it.
        announced: the journal has a record of this observation.
        regular: the steps have a mark of the device clock, and none of them waited for a compilation.
        busy_at: when it was last seen not to be ready, ns; 0: never looked at.
        ready_at: when the training thread saw it to be ready, ns; 0: not yet.
        idle_by: a mark that is ready by then (ns) had no work in front of it; the work ended by the host's clock.
        results: outputs that must be ready no later than `mark`; used to check the order of marks.
    """

    __slots__ = (
        "_last", "_latest", "_settled", "_waiting", "announced", "busy_at", "ends", "exclusive", "idle_by", "keys",
        "mark", "own", "phase", "place", "ready_at", "regular", "results", "starts",
    )  # fmt: skip

    def __init__(
        self,
        key: int,
        phase: int,
        start: int,
        mark: Any,
        place: tuple[int, int] = ALONE,
        *,
        own: bool = False,
        exclusive: bool = False,
        announced: bool = False,
    ) -> None:
        self.keys = [key]
        self.starts = [start]
        self.ends: list[int] = []
        self.phase = phase
        self.mark = mark
        self.place = place
        self.own = self.regular = own
        self.exclusive = exclusive
        self.announced = announced
        self.busy_at = self.ready_at = self.idle_by = 0
        self.results: Any = ()
        self._latest = key
        self._settled = False
        self._last: int | None = None  # duration of the step that joined last, ns
        self._waiting: dict[int, Callable[[int | None], None]] = {}

    @property
    def start(self) -> int:
        """When dispatching began, ns."""
        return self.starts[0]

    def join(self, key: int, start: int, end: int) -> None:
        """Add another step, whose work is on the device before `mark` is ready."""
        self._latest, self._settled = key, False
        self.starts.append(start)
        self.ends.append(end)
        self.keys.append(key)  # last: the watching thread counts keys

    def then(self, export: Callable[[int | None], None]) -> None:
        """Call `export` with the duration on the device of the step that joined last (ns; None: unknown)."""
        self._waiting[self._latest] = export
        if self._settled:
            self._call(self._latest, self._last)

    def settle(self, count: int, last: int | None, durations: Callable[[], Sequence[int | None]]) -> None:
        """Set the `durations` on the device of the first `count` steps, which leave this, ns; `last`: of the last one.

        None if one will never be known. They are computed only if a span waits for one.
        """
        keys = self.keys[:count]
        del self.keys[:count], self.starts[:count], self.ends[:count]
        if not self.keys:
            self.mark = None
            self.results = ()
            if count:
                self._last, self._settled = last, True
        for key in tuple(self._waiting):  # few of many
            if key in keys:
                self._call(key, durations()[keys.index(key)])

    def _call(self, key: int, duration: int | None) -> None:
        # then() and settle() may run in any order and on different threads; pop() lets only one of them call.
        export = self._waiting.pop(key, None)
        if export is not None:
            export(duration)


class ShortSpan(Nested):
    """The record of one step, load or part; :class:`~otel_goodput._recording.fast_span.FastSpan` opens and closes it.

    It has the members of ``ReadableSpan`` that tell what it is, for span processors that are notified of its start.
    Setters follow OpenTelemetry's contract: they never raise and do nothing after the end.

    Attributes:
        step: step number; ``NO_STEP``: none, or not known yet.
        title, label: name of a part, and the journal's id of that name.
        gate: gate of a load or part that is not exported because there are too many; else None.
        thread: id of the thread that opened it; only set if it is sampled at its begin.
        observation: observes when the step leaves the device.
        loop: where the loop is whose step it is; None if it is not one of ``steps()``.
        seen: when it was last seen to be in progress, ns; 0: when it began.
        saved: a checkpoint was saved in it.
        lapsed: it was over before anybody ended it.
        undone: it ended before it was completed, so that its number may be used again.
    """

    # Defaults are class attributes, so that an instance stores only values that differ.
    step: int
    label = 0
    title = ""
    gate: Gate | None = None
    thread = 0
    observation: Observation | None = None
    loop: Place | None = None
    seen = 0
    saved = False
    undone = False
    lapsed = False
    _phase: int
    _blocking: bool | None
    _key = 0
    _start = 0
    _end: int | None = None
    _ended = True  # until it is entered
    _sampled = False
    _keep = False
    _name: str | None = None
    _attributes: BoundedAttributes | None = None
    _events: list[SpanEvent] | None = None
    _links: list[Link] | None = None
    _status = UNSET

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
    def end_time(self) -> int | None:
        """ns since the epoch; None while it is open, and if it is not exported."""
        return self._end

    @property
    def name(self) -> str:
        return self._name or self.title or PHASES[self._phase]

    @property
    def kind(self) -> SpanKind:
        return SpanKind.INTERNAL

    @property
    def status(self) -> Status:
        return self._status

    @property
    def events(self) -> Sequence[SpanEvent]:
        return tuple(self._events or ())

    @property
    def sampled(self) -> bool:
        return self._sampled or self._keep

    @property
    def closed(self) -> bool:
        return self._ended

    @property
    def blocks(self) -> bool:
        """Whether it blocks training; valid once it has begun."""
        return self._blocking is not False

    @property
    def blocking_argument(self) -> bool | None:
        """The user's `blocking` argument; False once it has begun on a thread that does not train."""
        return self._blocking

    @property
    def error(self) -> str:
        """The ``error.type`` it ended with; empty if none."""
        return str(self._attributes.get(ERROR_TYPE, "")) if self._attributes else ""

    def is_recording(self) -> bool:
        return not self._ended

    # --- used by the recorder -----------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def parent(self) -> SpanContext | None:
        """The context of its parent; None if it is a root."""

    @abstractmethod
    def keep(self, *, paid: bool = False) -> None:
        """Export it, because something worth seeing happens in it. `paid`: room for it is reserved already."""

    @abstractmethod
    def renumber(self, step: int) -> None:
        """Set the number of its step, which was not known before."""

    @abstractmethod
    def abandon(
        self, end: int, flags: int = 0, *, failed: bool = True, left: bool = False, took: int | None = None
    ) -> None:
        """End it at `end` (ns) in place of its owner."""

    @abstractmethod
    def lapse(self, now: int, *, failed: bool = False) -> None:
        """End it where its work ended, because it is open at `now` (ns) although it is over."""

    @abstractmethod
    def now(self) -> int:
        """Return the current time, ns since the epoch."""

    @abstractmethod
    def refuse(self, key: str) -> None:
        """Warn that the user tried to set `key`, an attribute that identifies the phase; it stays unchanged."""

    # --- setters of OpenTelemetry's Span ------------------------------------------------------------------------------

    @property
    def _over(self) -> bool:
        """Whether it has ended; unlike `closed`, False before it begins."""
        return self._ended and self._key != 0

    @guarded(None)
    def set_attribute(self, key: str, value: types.AttributeValue) -> None:
        if not self._over:
            self._set(plain.attribute(key, value))

    @guarded(None)
    def set_attributes(self, attributes: Mapping[str, types.AttributeValue]) -> None:
        if not self._over:
            self._set(plain.attributes(attributes))

    def _set(self, attributes: Mapping[str, types.AttributeValue]) -> None:
        for key, value in attributes.items():
            if key in _SETTLED:
                self.refuse(key)
                continue
            if self._attributes is None:
                self._attributes = BoundedAttributes(_LIMIT, immutable=False)
                self.touched = TOUCHED
            self._attributes[key] = value

    @guarded(None)
    def add_event(self, name: str, attributes: types.Attributes = None, timestamp: int | None = None) -> None:
        if self._over:
            return
        if self._events is None:
            self._events = []
            self.touched = TOUCHED
        if len(self._events) < _LIMIT:
            moment = plain.integer(timestamp)
            taken = BoundedAttributes(_LIMIT, plain.attributes(attributes))
            self._events.append(
                SpanEvent(plain.text(name) or plain.quoted(name), taken, self.now() if moment is None else moment)
            )

    @guarded(None)
    def add_link(self, context: SpanContext, attributes: types.Attributes = None) -> None:
        if self._over:
            return
        if self._links is None:
            self._links = []
            self.touched = TOUCHED
        self._links.append(Link(context, plain.attributes(attributes)))

    @guarded(None)
    def update_name(self, name: str) -> None:
        if not self._over:
            self._name = plain.text(name) or self._name
            self.touched = TOUCHED

    @guarded(None)
    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        if not self._over:
            self._status = status if isinstance(status, Status) else Status(status, plain.text(description))
            self.touched = TOUCHED


def alive(context: Context) -> Context:
    """Return `context`, or if its span is a ShortSpan that has ended, the nearest outer context whose span has not."""
    while isinstance(span := context.get(SPAN_KEY), ShortSpan) and span.closed:
        context = span.within
    return context
