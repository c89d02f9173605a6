"""Tells whether a loop was left, and how: by a break or a return, or by an exception.

A loop that is left drops its iterator, and Python does not show a ``__del__`` the exception that it runs for. But the
last instruction of the frame that drops it tells: if it takes the iterator off the stack, the loop was left by
``break`` or ``return``; any other one has raised. If something else still holds the iterator (a variable, a traceback),
the place of the loop tells: its frame has returned, or executes instructions that are not part of the loop.
"""

from __future__ import annotations

import dis
import inspect
import sys
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from opcode import opname
from types import CodeType, FrameType
from typing import Final

# Instructions that take an iterator off the stack, by their names in Python 3.10 to 3.14; FOR_ITER does when the
# iterator is exhausted, such as an ``islice`` around the steps.
_TAKEN_OFF: Final = frozenset({"POP_TOP", "POP_ITER", "END_FOR", "FOR_ITER"})
# The last instruction of a generator that is being closed: the loop that uses it was left, or has raised.
_SUSPENDED: Final = frozenset({"YIELD_VALUE", "YIELD_FROM", "RESUME", "SEND", "RETURN_GENERATOR"})
_GENERATOR: Final = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
# Drop an iterator that is held by a variable: the variable is assigned or deleted, or a call has returned.
_REBOUND: Final = ("STORE_", "DELETE_")
_CALLS: Final = ("CALL", "PRECALL", "CACHE")
# Instructions that may do a step's work or hide where control goes: calls, implicit calls, exception handlers.
_WORK: Final = (
    *("CALL", "PRECALL", "BEFORE_", "SETUP_", "LOAD_SPECIAL", "GET_", "FOR_ITER", "SEND", "YIELD", "IMPORT"),
    *("BINARY_MATRIX_MULTIPLY", "INPLACE_MATRIX_MULTIPLY"),
)
_NO_WAY_ON: Final = ("JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "RETURN_", "RAISE_", "RERAISE")
_JUMPS: Final = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)
# Functions that ask for the next item in the name of a loop further out.
_PASSING_ON: Final = frozenset({"__next__", "__anext__"})


def clean_exit(error: BaseException) -> bool:
    """Return whether `error` is not a failure: ``sys.exit(0)``, or the closing of a generator."""
    return isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and error.code in (None, 0))


class Place:
    """Where a loop asks for its next item. It holds no frame, because a frame holds the variables of the loop.

    Attributes:
        frame, at: id of the frame that runs the loop, and offset of the instruction at which it asks.
        reliable: the loop was never said to be left and then asked for an item after all.
        elsewhere: other threads than the one that called ``steps()`` ask for items, perhaps in other contexts.
    """

    __slots__ = ("_code", "at", "elsewhere", "frame", "reliable")

    def __init__(self) -> None:
        self._code: CodeType | None = None
        self.frame = 0
        self.at = -1
        self.reliable = True
        self.elsewhere = False

    def ask(self, asking: FrameType) -> None:
        """Find the loop in which the frame `asking` asks for an item; generators and ``__next__()`` pass items on."""
        self._code = None
        frame: FrameType | None = asking
        while frame is not None:
            code = frame.f_code
            if not code.co_flags & _GENERATOR and code.co_name not in _PASSING_ON and _loop(code, frame.f_lasti):
                self._code, self.frame, self.at = code, id(frame), frame.f_lasti
                return
            frame = frame.f_back

    def left(self, thread: int) -> bool | None:
        """Return whether the loop, which the thread with this id ran, was left; None if that is not known."""
        code = self._code
        if code is None or not self.reliable:
            return None
        frame = sys._current_frames().get(thread)
        while frame is not None:
            if id(frame) == self.frame and frame.f_code is code:
                return frame.f_lasti not in _loop(code, self.at)
            frame = frame.f_back
        return None if code.co_flags & inspect.CO_COROUTINE else True  # a coroutine that waits is on no stack

    def raised(self, thread: int) -> bool | None:
        """Return whether the error that the thread handles, or a notebook has shown, came out of the loop, if known."""
        if self._code is None:
            return None
        handled = sys._current_exceptions().get(thread)
        error = handled[1] if isinstance(handled, tuple) else handled  # a tuple before Python 3.12
        return self._raised(error) or self._raised(getattr(sys, "last_value", None))

    def _raised(self, error: BaseException | None) -> bool:
        if error is None or clean_exit(error):
            return False
        at = error.__traceback__
        while at is not None and self._code is not None:
            frame = at.tb_frame
            if id(frame) == self.frame and frame.f_code is self._code:
                return at.tb_lasti in _loop(self._code, self.at)
            at = at.tb_next
        return False


@lru_cache(maxsize=64)
def _loop(code: CodeType, at: int) -> frozenset[int]:
    """Return the offsets of the innermost loop around offset `at`, inline caches included; empty if there is none.

    That is all from which the loop's head can be reached, and what stands between, such as a branch that raises.
    """
    try:
        instructions = list(dis.get_instructions(code))
        before = _flow(instructions)
        offsets = [instruction.offset for instruction in instructions]
        number = bisect_right(offsets, at) - 1
        loops = []
        for head, sources in before.items():
            inside, ways = {head}, [source for source in sources if source >= head]
            while ways:
                inside.add(way := ways.pop())
                ways += set(before.get(way, ())) - inside
            # Without a way back, a FOR_ITER is a loop all the same: its body always leaves it.
            if number in inside and (len(inside) > 1 or instructions[head].opname.endswith("FOR_ITER")):
                loops.append((len(inside), head, inside))
        if not loops:
            return frozenset()
        _, head, inside = min(loops)
        if instructions[head].opname.endswith("FOR_ITER"):
            inside |= set(range(head, bisect_right(offsets, instructions[head].argval) - 1))
        elif "PUSH_EXC_INFO" not in [instruction.opname for instruction in instructions[head : max(inside)]]:
            inside |= set(range(head, max(inside)))  # else it has handlers, which may stand behind all other code
        ends = [*offsets[1:], len(code.co_code)]
        return frozenset(offset for number in inside for offset in range(offsets[number], ends[number]))
    except (LookupError, ValueError):
        return frozenset()  # bytecode of an unknown Python version


def _flow(instructions: Sequence[dis.Instruction]) -> dict[int, list[int]]:
    """Return by the number of each instruction the numbers of those that can come right before it."""
    at = {instruction.offset: number for number, instruction in enumerate(instructions)}
    before: dict[int, list[int]] = {}
    for number, instruction in enumerate(instructions):
        if instruction.opcode in _JUMPS:
            before.setdefault(at[instruction.argval], []).append(number)
        if not instruction.opname.startswith(_NO_WAY_ON):
            before.setdefault(number + 1, []).append(number)
    return before


def way_left(loop: CodeType | None, begun: int, depth: int = 1) -> tuple[bool, bool]:
    """Return whether an exception is the reason why an iterator is being dropped, and whether its loop did no work.

    The latter is a loop that was left at its head, as by ``if step >= last: break``. True only if that is certain: the
    loop is in `loop`'s own frame, and no path from its head to where it was left can have done any work.

    Args:
        loop: the code of the loop; None if not known.
        begun: bytecode offset in it at which ``iter()`` was called.
        depth: number of frames from this function's caller (the iterator's ``__del__``) to the frame that drops it.
    """
    try:
        frame = sys._getframe(depth + 1)
    except ValueError:
        return True, False  # no frame is left, so only the traceback of an exception can have held the iterator
    idle = False
    if frame.f_code is loop and _instruction(frame) in _TAKEN_OFF:
        try:
            idle = _nothing_between(loop, begun, frame.f_lasti)
        except (LookupError, ValueError):
            pass  # bytecode of an unknown Python version
    return _by_exception(loop, frame), idle


def _by_exception(loop: CodeType | None, dropping: FrameType) -> bool:
    generator = loop is not None and loop.co_flags & _GENERATOR
    frame: FrameType | None = dropping
    while frame is not None:
        instruction = _instruction(frame)
        if instruction in _TAKEN_OFF:
            return False
        if instruction in _SUSPENDED and frame.f_code.co_flags & _GENERATOR:
            frame = frame.f_back
            continue
        if instruction.startswith(_CALLS):
            # In the loop's own code, this call has raised. Elsewhere, the function that held the iterator has returned,
            # and no traceback holds it. A loop in a generator is ambiguous (its user raised, or closed it): say raised.
            return loop is None or bool(generator) or frame.f_code is loop
        return not (instruction.startswith(_REBOUND) and frame.f_code is loop)
    return False


@lru_cache(maxsize=64)
def _nothing_between(loop: CodeType, begun: int, left: int) -> bool:
    # Cached, because it runs in a ``__del__``, where Python swallows a KeyboardInterrupt: it must be short.
    instructions = list(dis.get_instructions(loop))
    at = {instruction.offset: number for number, instruction in enumerate(instructions)}
    names = [instruction.opname for instruction in instructions]
    iterates = at[begun]
    iterates += names[iterates] == "PRECALL"  # in Python 3.11, this makes the call itself once it has often run
    iterates += names[iterates].startswith("CALL")  # a call around it, such as `enumerate`, has called iter()
    if names[iterates : iterates + 2] != ["GET_ITER", "FOR_ITER"]:
        return False
    head = iterates + 1
    before = _flow(instructions)
    ways, seen = [at[left]], {head}
    reached = False
    while ways:
        for number in before.get(ways.pop(), ()):
            reached |= number == head
            if number not in seen:
                instruction = instructions[number]
                if instruction.opname.startswith(_WORK) or instruction.argrepr in ("@", "@="):
                    return False
                seen.add(number)
                ways.append(number)
    return reached


def _instruction(frame: FrameType) -> str:
    code, at = frame.f_code.co_code, frame.f_lasti
    return opname[code[at]].removeprefix("INSTRUMENTED_") if 0 <= at < len(code) else ""
