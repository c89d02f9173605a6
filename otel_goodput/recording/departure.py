"""Tells how a loop was left: by a break or a return, or by an exception.

A loop that is left drops its iterator, whose ``__del__`` sees only the frame that drops it. The last instruction of
that frame tells: if it takes the iterator off the stack, the loop was left by ``break`` or ``return``; any other one
has raised. The instructions between the loop's head and that one tell whether the step did any work.
"""

from __future__ import annotations

import dis
import inspect
import sys
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
_WORK: Final = ("CALL", "PRECALL", "BEFORE_", "SETUP_", "LOAD_SPECIAL", "GET_", "FOR_ITER", "SEND", "YIELD", "IMPORT")
_MATMUL: Final = ("BINARY_MATRIX_MULTIPLY", "INPLACE_MATRIX_MULTIPLY")
_NO_WAY_ON: Final = ("JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "RETURN_", "RAISE_", "RERAISE")
_JUMPS: Final = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)


def by_exception(loop: CodeType | None, depth: int = 1) -> bool:
    """Return whether an exception is the reason why the iterator is being dropped.

    Args:
        loop: the code of the loop; None if not known.
        depth: number of frames from this function's caller (the iterator's ``__del__``) to the frame that drops it.
    """
    try:
        frame: FrameType | None = sys._getframe(depth + 1)
    except ValueError:
        return True  # no frame is left, so only the traceback of an exception can have held the iterator
    generator = loop is not None and loop.co_flags & _GENERATOR
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


def at_head(loop: CodeType | None, begun: int, depth: int = 1) -> bool:
    """Return whether the loop was left at its head, before it did any work: ``if step >= last: break``.

    True only if that is certain: the loop is in `loop`'s own frame, was left by ``break`` or ``return``, and no path
    from its head to there can have done any work.

    Args:
        loop: the code of the loop; None if not known.
        begun: bytecode offset in it at which ``iter()`` was called.
        depth: number of frames from this function's caller (the iterator's ``__del__``) to the frame that drops it.
    """
    try:
        frame = sys._getframe(depth + 1)
    except ValueError:
        return False
    if frame.f_code is not loop or _instruction(frame) not in _TAKEN_OFF:
        return False
    try:
        return _nothing_between(loop, begun, frame.f_lasti)
    except (LookupError, ValueError):
        return False  # bytecode of an unknown Python version


@lru_cache(maxsize=64)
def _nothing_between(loop: CodeType, begun: int, left: int) -> bool:
    """Return whether no path from the loop's head to offset `left` can have done any work.

    Cached, because it runs in a ``__del__``, where Python swallows a KeyboardInterrupt: it must be short.
    """
    instructions = list(dis.get_instructions(loop))
    at = {instruction.offset: number for number, instruction in enumerate(instructions)}
    names = [instruction.opname for instruction in instructions]
    asked = at[begun]
    if names[asked].startswith("CALL"):
        asked += 1  # a call around it, such as `enumerate`, has called iter()
    if names[asked : asked + 2] != ["GET_ITER", "FOR_ITER"]:
        return False
    head = asked + 1
    before: dict[int, list[int]] = {}
    for number, instruction in enumerate(instructions):
        if instruction.opcode in _JUMPS:
            before.setdefault(at[instruction.argval], []).append(number)
        if not instruction.opname.startswith(_NO_WAY_ON):
            before.setdefault(number + 1, []).append(number)
    ways, seen = [at[left]], {head}
    reached = False
    while ways:
        for number in before.get(ways.pop(), ()):
            reached |= number == head
            if number not in seen:
                if _works(instructions[number]):
                    return False
                seen.add(number)
                ways.append(number)
    return reached


def _works(instruction: dis.Instruction) -> bool:
    return instruction.opname.startswith(_WORK + _MATMUL) or instruction.argrepr in ("@", "@=")


def _instruction(frame: FrameType) -> str:
    code, at = frame.f_code.co_code, frame.f_lasti
    return opname[code[at]].removeprefix("INSTRUMENTED_") if 0 <= at < len(code) else ""
