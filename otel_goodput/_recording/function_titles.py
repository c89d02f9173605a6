"""Titles of compiled functions: two functions of one name have two, so that only the same one is compiled again.

What makes a function the same: its code, where it stands, and what it is bound to. A function that is made anew with
equal contents, as a lambda in the body of a loop, is the same.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

MOST: Final = 100  # functions of one name that are told apart; the names in a journal are bounded
DEEPEST: Final = 4  # functions in what a function is bound to, and so on
_PLAIN: Final = (int, float, complex, str, bytes, bool, type(None))


class FunctionTitles:
    """Gives each function a title: its name, and a number where another one had that name before."""

    def __init__(self) -> None:
        self._known: dict[str, dict[Hashable, str]] = {}
        self._traced: defaultdict[str, deque[str]] = defaultdict(partial(deque, maxlen=MOST))

    def title(self, name: str, function: object) -> str:
        """Return the title of `function`, whose name is `name`."""
        known = self._known.setdefault(name, {})
        key = fingerprint(function)
        title = known.get(key)
        if title is None:
            number = min(len(known) + 1, MOST)
            title = name if number == 1 else f"{name} #{number}"
            if len(known) < MOST:
                known[key] = title
        return title

    def postpone(self, name: str, title: str) -> None:
        """Keep the title of a function that was traced, and that may be compiled later."""
        self._traced[name].append(title)

    def resume(self, name: str) -> str:
        """Return the title of the function `name` that is compiled now, and was traced before."""
        try:
            return self._traced[name].popleft()
        except IndexError:  # compiled anew without a trace, as for other devices
            return next(reversed(self._known.get(name, {}).values()), name)


def fingerprint(thing: Any, deep: int = DEEPEST) -> Hashable:
    """Return what is equal for two functions that are the same; holds no reference to what they are bound to."""
    if isinstance(thing, _PLAIN):
        return type(thing), thing
    if isinstance(thing, CodeType):
        return thing.co_filename, thing.co_firstlineno, thing.co_name, hash(thing.co_code)
    if deep:
        deep -= 1
        if isinstance(thing, MethodType):
            return fingerprint(thing.__func__, deep), id(thing.__self__)
        if isinstance(thing, partial):
            bound = (thing.func, *thing.args, *thing.keywords.values())
            return tuple(fingerprint(each, deep) for each in bound)
        if isinstance(thing, FunctionType):
            bound = (*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values(), *_cells(thing))
            return fingerprint(thing.__code__), tuple(fingerprint(each, deep) for each in bound)
        if isinstance(thing, tuple):
            return tuple(fingerprint(each, deep) for each in thing)
    return id(thing)


def _cells(function: FunctionType) -> list[object]:
    """Return what the closure of `function` holds; of an empty cell, nothing."""
    held = []
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:
            continue
    return held
