"""The traces of an attempt: where one has as many spans as it may hold, the next one goes on.

Which of them a step is in follows from its number and the settings alone, so that all processes agree without a word,
and any of them can be named by whoever links to it.
"""

from __future__ import annotations

from typing import Final

from opentelemetry.trace import SpanContext

from otel_goodput.recording import ids
from otel_goodput.recording.budget import ENDLESS

NUMBERS: Final = 1 << 31
KNOWN: Final = 10_000  # traces remembered
CHILDREN: Final = 4  # spans that an exported step is thought to have, itself included
FIRST: Final = 100  # steps of an attempt exported in full


def steps_in_a_trace(limit: int, every: int) -> int:
    """How many steps a trace stands for that holds `limit` spans, where one step in `every` is exported.

    As many as the leader's half has room for with all that they hold; a round number (1, 2 or 5 and zeros).
    """
    if not limit:
        return ENDLESS
    room = max(limit * 3 // 10 - FIRST * CHILDREN, limit // 20, CHILDREN)
    steps = max(1, room // CHILDREN * every)
    power = int("1".ljust(len(str(steps)), "0"))
    return max(digit * power for digit in (1, 2, 5) if digit * power <= steps)


class Volumes:
    """The traces of one attempt that a group of its processes uses; number 0 of group 0 is that of its root.

    Args:
        run_id, attempt: whose.
        steps: that each stands for.
        group: of processes (:mod:`~otel_goodput.recording.budget`).
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
        """Those of another group."""
        return self if group == self.group else Volumes(self.run_id, self.attempt, self.steps, group)

    def number(self, step: int) -> int:
        """Of the trace that `step` is in."""
        return min(step // self.steps, NUMBERS - 1) if step > 0 else 0

    def root(self, number: int) -> SpanContext:
        """The root of the trace `number`; of 0 of group 0 that of the attempt."""
        root = self._roots.get(number)
        if root is None:
            if len(self._roots) >= KNOWN:
                first = self._roots[0]
                self._roots, self._numbers = {0: first}, {first.trace_id: 0}
            root = self._roots[number] = ids.volume_span_context(self.run_id, self.attempt, number, self.group)
            self._numbers[root.trace_id] = number
        return root

    def is_root(self, context: SpanContext, step: int) -> bool:
        """Whether it is the root of the trace that `step` is in, of those behind the first."""
        root = self._roots.get(step // self.steps) if step >= self.steps else None
        return root is not None and context.span_id == root.span_id

    def behind(self, number: int, before: int) -> SpanContext:
        """The root behind which that of the trace `number` comes: of its group's trace `before`, or, where it is the
        first one of its group, of the first of the group before.
        """
        return self.of(self.group - 1).root(0) if self.group and not number else self.root(before)

    def number_of(self, trace_id: int) -> int | None:
        """Which of the attempt's traces it is, of those that have been met; None: none of them."""
        return self._numbers.get(trace_id)
