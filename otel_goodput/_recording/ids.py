"""Ids of traces and spans: deterministic if another process or the next attempt must know them, else random."""

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
    """Return the trace id of an attempt, the same on all its processes."""
    return _digest(_TRACE_BITS, "attempt", run_id, attempt)


def step_trace_id(run_id: str, attempt: int, step: int) -> int:
    """Return the id of the separate trace of a step and its data load, the same on all processes."""
    return _digest(_TRACE_BITS, "step", run_id, attempt, step)


def span_id(*parts: object) -> int:
    """Return the span id that follows from `parts`: the same if the span is exported again after a crash."""
    return _digest(_SPAN_BITS, *parts)


def attempt_span_id(run_id: str, attempt: int, process: int = 0) -> int:
    """Return the id of the span to which other attempts link: the root of the trace, or a process's first job."""
    return span_id("job", run_id, attempt, process)


def job_span_id(run_id: str, attempt: int, process: int, life: int = 0) -> int:
    """Return the id of a job span, a child of the attempt's root; the process opened `life` jobs before this one."""
    if process and not life:
        return attempt_span_id(run_id, attempt, process)
    return span_id("job", run_id, attempt, process, life)


def attempt_span_context(run_id: str, attempt: int, process: int = 0) -> SpanContext:
    return SpanContext(attempt_trace_id(run_id, attempt), attempt_span_id(run_id, attempt, process), True, SAMPLED)


def job_span_context(run_id: str, attempt: int, process: int = 0, life: int = 0) -> SpanContext:
    return SpanContext(attempt_trace_id(run_id, attempt), job_span_id(run_id, attempt, process, life), True, SAMPLED)


def watched_span_context(kind: str, run_id: str, attempt: int, process: int, number: int) -> SpanContext:
    """Return the identity of an incident or a profile (`kind` is the span's name) that a process numbered so."""
    key = span_id(kind, run_id, attempt, process, number)
    return SpanContext(attempt_trace_id(run_id, attempt), key, False, SAMPLED)


def trace_root_context(run_id: str, attempt: int, number: int) -> SpanContext:
    """Return the root of trace `number`, the same on all processes; trace 0 is the attempt's own trace."""
    if not number:
        root = attempt_span_context(run_id, attempt)
        return SpanContext(root.trace_id, root.span_id, False, SAMPLED)
    which = (run_id, attempt, number)
    return SpanContext(_digest(_TRACE_BITS, "attempt", *which), span_id("volume", *which), False, SAMPLED)


class PrivateIdGenerator(IdGenerator):
    """Generates random ids from a separate random state.

    The SDK's generator uses the global ``random``: after ``random.seed(0)`` on every rank, all ranks generate the same
    ids, and a forked child repeats those of its parent.
    """

    def __init__(self) -> None:
        self._random = random.Random()
        self._reseed()
        self._next: tuple[int, int, int] | None = None  # thread, trace id, span id
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reseed)

    def _reseed(self) -> None:
        self._random.seed(os.urandom(32))
        # For spans without a fixed id: a partial adds no Python call. The invalid id 0 has a probability of 2**-64.
        self.new_span_id = partial(self._random.getrandbits, _SPAN_BITS)

    def fix_next(self, trace_id: int, span_id: int) -> None:
        """Set the ids of the next span that this thread starts: the SDK has no other way to choose the job's ids."""
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


def host_name() -> str:
    """Return the name of this host; ``localhost`` if the system does not tell."""
    try:
        return socket.gethostname()
    except OSError:
        return "localhost"


def instance_id(run_id: str, attempt: int, process: int) -> str:
    """Return the ``service.instance.id`` of a process of an attempt; it includes the name of this host."""
    return f"{run_id}/{attempt}/{process}@{host_name()}"
