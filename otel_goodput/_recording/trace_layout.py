"""How the spans of an attempt are laid out in traces: how many spans a trace holds, and whose they are.

When a trace is full, the attempt continues in the next one. Processes do not communicate about this: step number and
settings determine the trace of a step, and the number of processes each one's share of a trace. The leader has half of
it, or more if the others (the followers) need less; these share the rest, and have one span each at least.
"""

from __future__ import annotations

from typing import Final

from opentelemetry.trace import SpanContext

from otel_goodput._recording import ids
from otel_goodput._timeline.span_index import ENDLESS

NUMBERS: Final = 1 << 31
KNOWN: Final = 10_000  # maximum number of roots in the cache
CHILDREN: Final = 4  # assumed number of spans of an exported step, including itself
FIRST: Final = 100  # steps of an attempt, and other phases of one name, exported in full


def steps_in_a_trace(limit: int, every: int) -> int:
    """Return how many steps, a round number, fit into the leader's half of a trace if one in `every` is exported."""
    if not limit:
        return ENDLESS
    room = max(limit * 3 // 10 - FIRST * CHILDREN, limit // 20, CHILDREN)
    steps = max(1, room // CHILDREN * every)
    power = int("1".ljust(len(str(steps)), "0"))
    return max(digit * power for digit in (1, 2, 5) if digit * power <= steps)


class TraceLayout:
    """The traces of an attempt, of so many `steps` each; trace 0 has the attempt's root."""

    def __init__(self, run_id: str, attempt: int, steps: int = ENDLESS) -> None:
        self.steps = steps
        self.run_id = run_id
        self.attempt = attempt
        self._roots: dict[int, SpanContext] = {}
        self._numbers: dict[int, int] = {}
        self.root(0)

    def number(self, step: int) -> int:
        """Return the number of the trace that `step` is in; 0 for a negative `step`."""
        return min(step // self.steps, NUMBERS - 1) if step > 0 else 0

    def root(self, number: int) -> SpanContext:
        """Return the root of trace `number`; for trace 0, the attempt's root."""
        root = self._roots.get(number)
        if root is None:
            if len(self._roots) >= KNOWN:
                first = self._roots[0]
                self._roots, self._numbers = {0: first}, {first.trace_id: 0}
            root = self._roots[number] = ids.trace_root_context(self.run_id, self.attempt, number)
            self._numbers[root.trace_id] = number
        return root

    def is_root(self, context: SpanContext, step: int) -> bool:
        """Return whether `context` is the root of the trace that `step` is in; always False in trace 0."""
        root = self._roots.get(step // self.steps) if step >= self.steps else None
        return root is not None and context.span_id == root.span_id

    def number_of(self, trace_id: int) -> int | None:
        """Return the number of the trace with this id; None if it is not one whose root was used."""
        return self._numbers.get(trace_id)


# The worth of a span. A span is exported only while its share is filled to less than these tenths, so that room is
# left for spans of higher worth.
ROUTINE: Final = 0  # sampled steps, with their loads and parts
NOTABLE: Final = 1  # slow steps and phases, and phases other than steps
VITAL: Final = 2  # jobs, failures, summaries
_TENTHS: Final = (6, 8, 10)

SMALL: Final = 8  # a share of fewer spans is used for failures alone
DETAILED: Final = 10  # a process with at least a tenth of a trace exports single steps, as the leader does
RESERVED: Final = 8  # spans of every trace for its root and its links to other traces
TRACES: Final = 10_000  # traces counted at a time


def share(limit: int, processes: int, *, leads: bool = True) -> int:
    """Return how many of the `limit` spans in a trace are those of a process, of so many; `leads`: of the leader."""
    rest = max(1, (limit - RESERVED) // 2)  # spans left for followers
    followers = min(processes - 1, rest)
    each = max(1, rest // followers) if followers else 0
    return max(1, limit - RESERVED - each * followers) if leads else each


class Budget:
    """Limits and counts the spans that one process puts into each trace; see :func:`share`. A `limit` of 0 is none.

    Attributes:
        most: this process's share: spans in one trace.
        small: the share is for failures alone; the process's job is not exported.
        detailed: this process exports single steps, as the leader does.
        phases: worth of a phase that is not a step.
    """

    def __init__(self, limit: int = 0, processes: int = 1, *, leads: bool = True) -> None:
        self.limit = limit
        self._spent: dict[int, int] = {}  # spans of this process, by trace id
        self.most = share(limit, processes, leads=leads) if limit else ENDLESS
        self.small = self.most < SMALL
        self.detailed = leads or self.most >= limit // DETAILED
        # A small share is all for failures. Others keep some room for spend(): parents of exported spans.
        room = self.most if self.small else self.most - min(64, max(4, self.most // 16))
        self._limits = (0, 0, room) if self.small else tuple(room * tenths // 10 for tenths in _TENTHS)
        # Without single steps, phases compete with nothing, so the lowest worth is enough.
        self.phases = NOTABLE if self.detailed else ROUTINE

    def summaries(self) -> int:
        return max(1, self.most // 8)

    def take(self, trace_id: int, worth: int) -> bool:
        """Count one more span in the trace; return False if there is no room for its `worth`."""
        spent = self._spent.get(trace_id)
        if spent is None:
            if self.limit and self._limits[worth] <= 0:
                return False
            self.spend(trace_id)
        elif spent >= self._limits[worth]:
            return False
        else:
            self._spent[trace_id] = spent + 1
        return True

    def spend(self, trace_id: int) -> None:
        """Count one more span in the trace without a limit, because a span inside it is exported."""
        if self.limit:
            spent = self._spent
            if trace_id not in spent and len(spent) >= TRACES:
                spent.pop(next(iter(spent)), None)
            # Two threads may rarely count one span for both; the trace has more room than that.
            spent[trace_id] = spent.get(trace_id, 0) + 1
