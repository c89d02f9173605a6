"""Samples where the training thread stands in its steps, from the keeper's thread: at work itself, or waiting.

A sample is taken at every tick, so there is no further thread, and none of it runs on the training thread. In the
frames, and in the name of the function of C that is called, it is recognized whether the thread waits for other ranks
or for its device. Its processor time says so where a call may be either, such as a backward pass with collectives.
"""

from __future__ import annotations

import dis
import sys
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

from otel_goodput._accounting.own_time import OwnTime

DEPTH: Final = 12  # frames that are looked at, from the innermost one
_PLACES: Final = 4096  # calls in code that are remembered
LONGEST_NS: Final = 10_000_000_000  # between two samples: otherwise the process was stopped

_WORKS, _WAITS, _UNCLEAR = 0, 1, 2
_ALL: Final = frozenset[str]()

# Python functions inside of which a thread waits for other ranks or for its device: by the end of the file's path, and
# by their names; none: all of the file.
WAITING: Final = (
    ("torch/distributed/distributed_c10d.py", _ALL),
    ("torch/distributed/_functional_collectives.py", _ALL),
    ("torch/cuda/__init__.py", frozenset({"synchronize"})),
    ("torch/cuda/streams.py", frozenset({"synchronize", "wait", "wait_event", "wait_stream"})),
    ("torch/xpu/__init__.py", frozenset({"synchronize"})),
    ("jax/_src/api.py", frozenset({"block_until_ready", "effects_barrier", "device_get"})),
    ("jax/_src/array.py", _ALL),
    ("jax/experimental/multihost_utils.py", _ALL),
    ("horovod/torch/mpi_ops.py", _ALL),
    ("multiprocessing/connection.py", _ALL),
    ("multiprocessing/synchronize.py", _ALL),
    ("/threading.py", frozenset({"wait", "acquire", "join", "_wait_for_tstate_lock"})),
    ("/queue.py", frozenset({"get", "put"})),
    ("/socket.py", frozenset({"readinto", "accept"})),
    ("/selectors.py", frozenset({"select"})),
    ("/ssl.py", frozenset({"read", "recv", "recv_into"})),
    ("concurrent/futures/_base.py", frozenset({"result", "exception"})),
)
# The same of functions of C, whoever calls them.
WAITING_CALLS: Final = frozenset(
    (
        *("recv", "recv_into", "recvfrom", "recvmsg", "accept", "select", "poll", "acquire", "wait", "wait_tensor"),
        *("synchronize", "block_until_ready", "item", "wait_at_barrier", "barrier", "Barrier", "Wait", "Waitall"),
        *("Allreduce", "Allgather", "Reduce", "Bcast", "Alltoall", "allreduce", "allgather", "bcast"),
        *("all_reduce", "all_gather", "reduce_scatter", "broadcast"),
    )
)
# In these, a thread computes, or waits for collectives.
UNCLEAR: Final = (
    ("torch/autograd/graph.py", frozenset({"_engine_run_backward"})),
    ("torch/autograd/__init__.py", frozenset({"backward", "grad"})),
)
UNCLEAR_CALLS: Final = frozenset({"run_backward", "backward"})
_NAMED: Final = WAITING_CALLS | UNCLEAR_CALLS
_NAMES: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF"})


class OwnTimeSampler:
    """Samples the training thread at each :meth:`tick`.

    Args:
        thread: returns the identity of the training thread.
        inside: returns whether a step is open, and no other phase in it; None: no job is open.
    """

    def __init__(self, thread: Callable[[], int | None], inside: Callable[[], bool | None]) -> None:
        self._thread, self._inside = thread, inside
        self._counts = OwnTime()
        self._sampled: int | None = None  # the thread of the latest sample
        self._clock: int | None = None  # that of its processor time
        self._before = self._computed = 0  # ns, at the latest sample
        self._codes: dict[CodeType, int] = {}
        self._places: dict[tuple[CodeType, int], int] = {}

    @property
    def counts(self) -> OwnTime:
        """What the samples say so far."""
        return self._counts

    def tick(self) -> None:
        """Take a sample; for the keeper's thread."""
        thread, inside = self._thread(), self._inside()
        if thread is None or inside is None:
            self._sampled = None
            return
        frame = sys._current_frames().get(thread)
        if frame is None:
            self._sampled = None
            return
        stands = self._where(frame) if inside else _WORKS
        del frame
        now, computed = time.monotonic_ns(), self._processor_time(thread)
        if self._sampled == thread and now - self._before < LONGEST_NS:
            so_far = self._counts
            self._counts = OwnTime(
                so_far.samples + 1,
                so_far.inside + inside,
                so_far.waiting + (stands == _WAITS),
                so_far.unclear + (stands == _UNCLEAR),
                so_far.lasted + now - self._before,
                so_far.computed + max(0, computed - self._computed),
            )
        self._sampled, self._before, self._computed = thread, now, computed

    def _processor_time(self, thread: int) -> int:
        """Return the processor time of a thread, ns, which has a frame: it lives, as this holds the GIL."""
        if thread != self._sampled:
            clock_of = getattr(time, "pthread_getcpuclockid", None)  # not on every system
            self._clock = None if clock_of is None else clock_of(thread)
        try:
            return 0 if self._clock is None else time.clock_gettime_ns(self._clock)
        except OSError:
            return 0

    def _where(self, frame: FrameType) -> int:
        """Return whether a thread waits, by its innermost frames."""
        place = frame.f_code, frame.f_lasti
        kind = self._places.get(place)
        if kind is None:
            if len(self._places) >= _PLACES:
                self._places.clear()
            kind = self._places[place] = _kind_of_call(*place)
        at: FrameType | None = frame
        depth = 0
        while at is not None and depth < DEPTH and not kind:
            code = at.f_code
            known = self._codes.get(code)
            if known is None:
                if len(self._codes) >= _PLACES:
                    self._codes.clear()
                known = self._codes[code] = _kind_of_code(code)
            kind = known
            at, depth = at.f_back, depth + 1
        return kind


def _kind_of_code(code: CodeType) -> int:
    file = code.co_filename.replace("\\", "/")
    for kind, table in ((_WAITS, WAITING), (_UNCLEAR, UNCLEAR)):
        for end, names in table:
            if file.endswith(end) and (not names or code.co_name in names):
                return kind
    return _WORKS


def _kind_of_call(code: CodeType, at: int) -> int:
    if _NAMED.isdisjoint((*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)):
        return _WORKS  # to look at all its instructions may take milliseconds
    name = called(code, at)
    return _WAITS if name in WAITING_CALLS else _UNCLEAR if name in UNCLEAR_CALLS else _WORKS


def called(code: CodeType, at: int) -> str:
    """Return the name of what is called by the instruction `at` an offset of code; empty if that is not known.

    It is what was loaded last of that with which the expression of the call begins: of ``loss.sum().item()``, the item.
    """
    best = ""
    if not hasattr(code, "co_positions"):  # before Python 3.11, instructions have lines only
        for instruction in dis.get_instructions(code):
            if instruction.offset >= at:
                break
            if instruction.opname == "LOAD_METHOD":
                best = str(instruction.argval)
        return best
    if not 0 <= at < len(bytecode := code.co_code) or not dis.opname[bytecode[at]].startswith("CALL"):
        return ""
    instructions: list[Any] = list(dis.get_instructions(code))  # positions are unknown to Python 3.10
    call = next((one for one in instructions if one.offset == at), None)
    if call is None or call.positions is None:
        return ""
    begin, end = call.positions.lineno, call.positions.end_lineno
    column, last = call.positions.col_offset, call.positions.end_col_offset
    if None in (begin, end, column, last):
        return ""
    longest = (-1, -1)
    for one in instructions:
        if one.offset >= at:
            break
        where = one.positions
        if one.opname not in _NAMES or where is None or (where.lineno, where.col_offset) != (begin, column):
            continue
        reach = where.end_lineno or 0, where.end_col_offset or 0
        if longest < reach < (end or 0, last or 0):
            longest, best = reach, str(one.argval)
    return best
