"""Identities of traces and spans: deterministic where another process or the next attempt must name them, private
elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import random
import socket
from functools import partial
from threading import get_ident
from typing import Final

from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import SpanContext, TraceFlags

_TRACE_BITS: Final = 128
_SPAN_BITS: Final = 64
SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
UNSAMPLED: Final = TraceFlags(TraceFlags.DEFAULT)


def _digest(bits: int, *parts: object) -> int:
    text = "\0".join(str(part) for part in parts)
    value = int.from_bytes(hashlib.sha256(text.encode()).digest()[: bits // 8], "big")
    return value or 1


def attempt_trace_id(run_id: str, attempt: int) -> int:
    """Trace of an attempt, the same on all its processes."""
    return _digest(_TRACE_BITS, "attempt", run_id, attempt)


def step_trace_id(run_id: str, attempt: int, step: int) -> int:
    """Trace of one step and its data load where steps have traces of their own, the same on all processes."""
    return _digest(_TRACE_BITS, "step", run_id, attempt, step)


def attempt_span_id(run_id: str, attempt: int, process: int = 0) -> int:
    """The span that stands for a process of an attempt before any other does: what other attempts link to.

    Of process 0 it is the root of the attempt's trace, of the others their job. Journals from before there were roots
    have the job of process 0 under this id.
    """
    return _digest(_SPAN_BITS, "job", run_id, attempt, process)


def job_span_id(run_id: str, attempt: int, process: int, life: int = 0) -> int:
    """The job span of one process of an attempt, a child of the attempt's root.

    `life` counts the jobs that the process has opened before this one.
    """
    if process and not life:
        return attempt_span_id(run_id, attempt, process)
    return _digest(_SPAN_BITS, "job", run_id, attempt, process, life)


def summary_span_id(run_id: str, attempt: int, process: int, first: int, start: int) -> int:
    """The ``steps`` span of the stretch from step `first` at `start` (ns): the same if it is exported again after a
    crash.
    """
    return _digest(_SPAN_BITS, "steps", run_id, attempt, process, first, start)


def phases_span_id(run_id: str, attempt: int, process: int, name: str, start: int) -> int:
    """The ``phases`` span of the stretch of phases called `name` from `start` (ns) on, as :func:`summary_span_id`."""
    return _digest(_SPAN_BITS, "flood", run_id, attempt, process, name, start)


def attempt_span_context(run_id: str, attempt: int, process: int = 0) -> SpanContext:
    """The identity of what :func:`attempt_span_id` names, for whoever links to it or opens a span under it."""
    return SpanContext(
        attempt_trace_id(run_id, attempt),
        attempt_span_id(run_id, attempt, process),
        is_remote=True,
        trace_flags=SAMPLED,
    )


def volume_span_context(run_id: str, attempt: int, number: int, group: int = 0) -> SpanContext:
    """The root of the trace `number` of a group of processes, the same on all; of 0 of group 0 the attempt's own."""
    if not number and not group:
        root = attempt_span_context(run_id, attempt)
        return SpanContext(root.trace_id, root.span_id, False, SAMPLED)
    which = (run_id, attempt, number, *([group] if group else ()))
    return SpanContext(
        _digest(_TRACE_BITS, "attempt", *which),
        _digest(_SPAN_BITS, "volume", *which),
        is_remote=False,
        trace_flags=SAMPLED,
    )


def continued_span_id(run_id: str, attempt: int, number: int, group: int = 0) -> int:
    """The span that says in the trace before that the attempt goes on in the trace `number` of `group`."""
    return _digest(_SPAN_BITS, "follow", run_id, attempt, number, *([group] if group else ()))


def job_span_context(run_id: str, attempt: int, process: int = 0, life: int = 0) -> SpanContext:
    """The identity of a job span, for whoever links to it or opens a span under it."""
    return SpanContext(
        attempt_trace_id(run_id, attempt),
        job_span_id(run_id, attempt, process, life),
        is_remote=True,
        trace_flags=SAMPLED,
    )


class PrivateIdGenerator(IdGenerator):
    """Random ids from a generator of our own.

    The SDK's draws from the global ``random``: after ``random.seed(0)`` on every rank, all ranks use the same ids, and
    a forked child repeats its parent's.
    """

    def __init__(self) -> None:
        self._random = random.Random()
        self._reseed()
        self._next: tuple[int, int, int] | None = None  # thread, trace id, span id
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reseed)

    def _reseed(self) -> None:
        self._random.seed(os.urandom(32))
        # For spans whose id nobody fixes: no call of Python's in between; 0 comes once in 2**64 times.
        self.new_span_id = partial(self._random.getrandbits, _SPAN_BITS)

    def fix_next(self, trace_id: int, span_id: int) -> None:
        """The next span gets these ids: for the job span, which has no other way to be told them."""
        self._next = (get_ident(), trace_id, span_id)

    def generate_span_id(self) -> int:
        if self._next is not None and self._next[0] == get_ident():
            span_id, self._next = self._next[2], None
            return span_id
        return self._random.getrandbits(_SPAN_BITS) or 1

    def generate_trace_id(self) -> int:
        if self._next is not None and self._next[0] == get_ident():
            return self._next[1]
        return self._random.getrandbits(_TRACE_BITS) or 1


def instance_id(run_id: str, attempt: int, process: int) -> str:
    """``service.instance.id`` of a process of an attempt of a run, as told on this host."""
    return f"{run_id}/{attempt}/{process}@{socket.gethostname()}"
