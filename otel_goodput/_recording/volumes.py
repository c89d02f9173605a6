"""The traces of an attempt: when one has as many spans as it may hold, the attempt continues in the next.

The step number and the settings alone determine the trace of a step, so that all processes agree without communicating,
and any process can link to any of the traces.
"""

from __future__ import annotations

from typing import Final

from opentelemetry.trace import SpanContext

from otel_goodput._journal.unexported import ENDLESS
from otel_goodput._recording import ids

NUMBERS: Final = 1 << 31
KNOWN: Final = 10_000  # maximum number of roots in the cache
CHILDREN: Final = 4  # assumed number of spans of an exported step, including itself
FIRST: Final = 100  # steps of an attempt exported in full


def steps_in_a_trace(limit: int, every: int) -> int:
    """Return the number of steps in one trace of `limit` spans, if one step in `every` is exported.

    The exported steps and the spans in them fit into the leader's half of the trace. The result is a round number
    (1, 2 or 5 and zeros).
    """
    if not limit:
        return ENDLESS
    room = max(limit * 3 // 10 - FIRST * CHILDREN, limit // 20, CHILDREN)
    steps = max(1, room // CHILDREN * every)
    power = int("1".ljust(len(str(steps)), "0"))
    return max(digit * power for digit in (1, 2, 5) if digit * power <= steps)


class Volumes:
    """The traces of an attempt that one group of its processes uses; trace 0 of group 0 has the attempt's root.

    Args:
        run_id, attempt: identify the attempt.
        steps: number of steps in each trace.
        group: the group of processes (see :mod:`~otel_goodput._recording.budget`).
    """

    def __init__(self, run_id: str, attempt: int, steps: int = ENDLESS, group: int = 0) -> None:
        self.steps = steps
        self.run_id = run_id
        self.attempt = attempt
        self.group = group
        self._roots: dict[int, SpanContext] = {}
        self._numbers: dict[int, int] = {}
        self.root(0)

    def of(self, group: int) -> Volumes:
        """Return the traces of the group `group`."""
        return self if group == self.group else Volumes(self.run_id, self.attempt, self.steps, group)

    def number(self, step: int) -> int:
        """Return the number of the trace that `step` is in; 0 for a negative `step`."""
        return min(step // self.steps, NUMBERS - 1) if step > 0 else 0

    def root(self, number: int) -> SpanContext:
        """Return the root of trace `number`; for trace 0 of group 0, the attempt's root."""
        root = self._roots.get(number)
        if root is None:
            if len(self._roots) >= KNOWN:
                first = self._roots[0]
                self._roots, self._numbers = {0: first}, {first.trace_id: 0}
            root = self._roots[number] = ids.volume_span_context(self.run_id, self.attempt, number, self.group)
            self._numbers[root.trace_id] = number
        return root

    def is_root(self, context: SpanContext, step: int) -> bool:
        """Return whether `context` is the root of the trace that `step` is in; always False in trace 0."""
        root = self._roots.get(step // self.steps) if step >= self.steps else None
        return root is not None and context.span_id == root.span_id

    def behind(self, number: int, before: int) -> SpanContext:
        """Return the root of the trace that precedes trace `number`.

        That is trace `before` of the same group; for the first trace of a further group, trace 0 of the previous group.
        """
        return self.of(self.group - 1).root(0) if self.group and not number else self.root(before)

    def number_of(self, trace_id: int) -> int | None:
        """Return the number of the trace with this id; None if it is not one whose root was used."""
        return self._numbers.get(trace_id)
