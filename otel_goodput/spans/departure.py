"""How a loop was left: by a break or a return, or by an exception.

A loop that is left drops its iterator, and whoever is dropped sees only the frame that drops it. There the last
instruction tells: the one that takes the iterator off the stack stands behind a ``break`` or a ``return``; any other is
the one that raised.
"""

from __future__ import annotations

import inspect
import sys
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


def _instruction(frame: FrameType) -> str:
    code, at = frame.f_code.co_code, frame.f_lasti
    return opname[code[at]].removeprefix("INSTRUMENTED_") if 0 <= at < len(code) else ""
