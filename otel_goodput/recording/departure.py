"""How a loop was left: by a break or a return, or by an exception.

A loop that is left drops its iterator, and whoever is dropped sees only the frame that drops it. There the last
instruction tells: the one that takes the iterator off the stack stands behind a ``break`` or a ``return``; any other is
the one that raised. And the instructions between the loop's head and that one tell whether anything was done.
"""

from __future__ import annotations

import dis
import inspect
import sys
from functools import lru_cache
from opcode import opname
from types import CodeType, FrameType
from typing import Final

# What takes an iterator off the stack, by its names of Python 3.10 to 3.14; the last where it is exhausted, such as an
# ``islice`` around the steps.
_TAKEN_OFF: Final = frozenset({"POP_TOP", "POP_ITER", "END_FOR", "FOR_ITER"})
# Where a generator stands while it is closed: its own user has left a loop, or has raised.
_SUSPENDED: Final = frozenset({"YIELD_VALUE", "YIELD_FROM", "RESUME", "SEND", "RETURN_GENERATOR"})
_GENERATOR: Final = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
# Of an iterator that a name holds: it is given another value, or deleted; or the function that held it has returned.
_REBOUND: Final = ("STORE_", "DELETE_")
_CALLS: Final = ("CALL", "PRECALL", "CACHE")
# What may do a step's work, or hides where the way went on: calls, what calls by another name, handlers.
_WORK: Final = ("CALL", "PRECALL", "BEFORE_", "SETUP_", "LOAD_SPECIAL", "GET_", "FOR_ITER", "SEND", "YIELD", "IMPORT")
_MATMUL: Final = ("BINARY_MATRIX_MULTIPLY", "INPLACE_MATRIX_MULTIPLY")
_NO_WAY_ON: Final = ("JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "RETURN_", "RAISE_", "RERAISE")
_JUMPS: Final = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)


def by_exception(loop: CodeType | None, depth: int = 1) -> bool:
    """Whether the iterator that is being dropped, `depth` calls above this one, was dropped by an exception.

    Args:
        loop: the code that iterates, as far as it is known.
        depth: frames between the caller's caller and here.
    """
    try:
        frame: FrameType | None = sys._getframe(depth + 1)
    except ValueError:
        return True  # nobody is left but an exception that was held to the last
    generator = loop is not None and loop.co_flags & _GENERATOR
    while frame is not None:
        instruction = _instruction(frame)
        if instruction in _TAKEN_OFF:
            return False
        if instruction in _SUSPENDED and frame.f_code.co_flags & _GENERATOR:
            frame = frame.f_back
            continue
        if instruction.startswith(_CALLS):
            # In the loop's own code it is the call that raised; else the function that held the iterator is over, and
            # no exception holds on to it. A generator's user may have raised as well as have closed it.
            return loop is None or bool(generator) or frame.f_code is loop
        return not (instruction.startswith(_REBOUND) and frame.f_code is loop)
    return False


def at_head(loop: CodeType | None, begun: int, depth: int = 1) -> bool:
    """Whether the loop was left at its head, before anything was called: ``if step >= last: break``.

    True only where it is certain: of a loop that stands in the user's own code, left by a ``break`` or ``return`` to
    which no way leads on which something may have been done.

    Args:
        loop: the code that iterates, as far as it is known.
        begun: where in it the iterator was asked for, a bytecode offset.
        depth: frames between the caller's caller and here.
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
        return False  # bytecode of a Python that we do not know


@lru_cache(maxsize=64)
def _nothing_between(loop: CodeType, begun: int, left: int) -> bool:
    """Kept, for it is asked while an iterator is dropped, when Python swallows an interrupt."""
    instructions = list(dis.get_instructions(loop))
    at = {instruction.offset: number for number, instruction in enumerate(instructions)}
    names = [instruction.opname for instruction in instructions]
    asked = at[begun]
    if names[asked].startswith("CALL"):
        asked += 1  # by what stands around it, such as `enumerate`
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
