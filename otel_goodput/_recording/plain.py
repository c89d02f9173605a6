"""Users' values as plain ones: read when they are passed, without waiting for a device and without a reference to them.

A value on a device is available only once the device has finished all work before it, and reading a donated one raises.
So only values of Python, its standard library and numpy are read. Others are dropped, with one warning that shows the
line to write instead.
"""

from __future__ import annotations

import operator
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final

from opentelemetry.util import types

from otel_goodput._journal.records import LARGEST
from otel_goodput._runtime.guard import report_once
from otel_goodput.errors import PhaseError

_DEEPEST: Final = 8  # levels of containers
_MOST: Final = 1000  # entries of a container
# Standard modules whose values are text at once, such as paths and dates.
_TEXTUAL: Final = frozenset({"pathlib", "pathlib._local", "datetime", "decimal", "fractions", "uuid", "zoneinfo"})
# Methods that make the text of an exception from Python alone.
_BUILT_IN: Final[frozenset[object]] = frozenset({BaseException.__str__, KeyError.__str__, OSError.__str__})
_SHOWN: Final = (str, int, float, bool, type(None))
_DROPPED: Final = object()


def _numpy_scalar(kind: type) -> bool:
    return issubclass(kind, getattr(sys.modules.get("numpy"), "generic", ()))


def _numpy_array(kind: type) -> bool:
    return kind is getattr(sys.modules.get("numpy"), "ndarray", None)


def kind_of(value: object) -> str:
    return type(value).__qualname__


def quoted(value: object) -> str:
    """Return how a message shows `value`: as Python writes it, or by its type if that could wait or raise."""
    return repr(value) if type(value) in _SHOWN else f"an object of type {kind_of(value)}"


def integer(value: object) -> int | None:
    """Return an integer of Python or numpy as an ``int``; None for anything else."""
    kind = type(value)
    if issubclass(kind, int):
        return int.__index__(value)  # type: ignore[arg-type]
    if _numpy_scalar(kind) or (_numpy_array(kind) and not value.ndim and value.dtype.kind in "iu"):  # type: ignore[attr-defined]
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            return None
    return None


def numbered(value: object, phase: str, what: str = "a step number") -> int | None:
    """Return `value` (`what`, in messages) as a number for `phase`; None, with one warning, if reading it could wait.

    Raises PhaseError if it is no integer from 0 that a record can hold.
    """
    number = integer(value)
    if number is None and type(value).__module__ != "builtins" and not _numpy_scalar(type(value)):
        why = (
            "%s() was given %s as %s. Reading it could wait for the device in every step, so it is not read: a step "
            "gets the next number, and other phases get none. Keep the number as an int next to the state, and read "
            "it once outside of the loop: `n = int(state.step)`"
        )
        report_once(f"{phase} number", why, phase, quoted(value), what)
        return None
    if number is None or not 0 <= number <= LARGEST:
        raise PhaseError(phase, f"{phase}() needs {what} (an integer >= 0), not {quoted(value)}")
    return number


def moment(value: object, phase: str) -> int | None:
    """Return a time of a phase, ns; None if none was given. Raises PhaseError if a record cannot hold it."""
    if value is None:
        return None
    number = integer(value)
    if number is None or abs(number) > LARGEST:
        raise PhaseError(phase, f"{phase}(): times must be integers, in ns since the epoch, not {quoted(value)}")
    return number


def seconds(value: object, function: str, otherwise: float) -> float:
    """Return a time limit, s; `otherwise` for None, and with one warning for what is not a number."""
    kind = type(value)
    if issubclass(kind, float):
        return float.__float__(value)  # type: ignore[arg-type]
    number = integer(value)
    if number is None and value is not None:
        text = "%s(timeout=…) needs a number of seconds, not %s; %g s are used"
        report_once(f"{function} timeout", text, function, quoted(value), otherwise)
    return otherwise if number is None else float(number)


def flag(value: object, argument: str, otherwise: bool | None) -> bool | None:
    """Return an argument that is True or False; `otherwise`, with one warning, if it is neither."""
    if value is None or type(value) is bool:
        return value
    number = integer(value)
    if number in (0, 1):
        return bool(number)
    report_once(f"flag {argument}", "%s= must be True or False, not %s; it is left out", argument, quoted(value))
    return otherwise


def text(value: object) -> str | None:
    """Return the text of a string, number, path or the like; None for anything else."""
    kind = type(value)
    if issubclass(kind, str):
        return str.__str__(value)
    if kind in (int, float, bool) or kind.__module__ in _TEXTUAL or _numpy_scalar(kind):
        return str(value)
    return None


def name(value: object, phase: str) -> str:
    """Return the name of a phase, without surrounding white space. Raises PhaseError if it is blank, or no text."""
    title = text(value)
    if title is None:
        raise PhaseError(phase, f'{phase}() needs a name, as in goodput.{phase}("eval"), not {quoted(value)}')
    if not title.strip():
        raise PhaseError(phase, f"{phase}() needs a name that is not blank")
    return title.strip()


def attribute(key: object, value: object) -> dict[str, types.AttributeValue]:
    """Return an attribute that can be taken, by its name; nothing, with one warning for each type, if it cannot."""
    if type(key) is not str:
        _warn_dropped("(without a name)", key)
        return {}
    taken = _attribute(value, 0)
    if taken is _DROPPED:
        _warn_dropped(key, value)
        return {}
    return {key: taken}


def attributes(given: object) -> dict[str, types.AttributeValue]:
    taken: dict[str, types.AttributeValue] = {}
    if issubclass(type(given), Mapping):
        for key, value in list(given.items())[:_MOST]:  # type: ignore[attr-defined]
            taken |= attribute(key, value)
    elif given is not None:
        _warn_dropped("(all of them)", given)
    return taken


def _warn_dropped(key: str, value: object) -> None:
    why = (
        "The attribute %r is dropped: its value is %s, and reading that could wait for the device. Set a number or a "
        "text, such as `float(loss)` where the loop reads the loss anyway; goodput.observe(loss) never waits"
    )
    report_once(f"attribute of {type(value).__module__}.{kind_of(value)}", why, key, quoted(value))


def _attribute(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in (str, bool, int, float, bytes) or value is None:
        return value
    for plain, read in _SUBCLASSES:
        if issubclass(kind, plain):
            return read(value)
    if _numpy_scalar(kind):
        return _attribute(value.item(), depth + 1) if depth < _DEEPEST else _DROPPED
    if _numpy_array(kind):
        return _attribute(value.tolist(), depth + 1) if value.size <= _MOST and not value.dtype.hasobject else _DROPPED
    if depth < _DEEPEST and issubclass(kind, (list, tuple)):
        items = [_attribute(one, depth + 1) for one in (list if issubclass(kind, list) else tuple).__iter__(value)]
        return _DROPPED if any(one is _DROPPED for one in items) else items
    if depth < _DEEPEST and kind is dict:
        pairs = {key: _attribute(one, depth + 1) for key, one in value.items() if type(key) is str}
        return _DROPPED if any(one is _DROPPED for one in pairs.values()) else pairs
    return _DROPPED if (as_text := text(value)) is None else as_text


# Methods of the plain types, which a subclass cannot replace.
_SUBCLASSES: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (
    (str, str.__str__),
    (int, int.__index__),
    (float, float.__float__),
    (bytes, lambda value: bytes(memoryview(value))),
)


def error_name(error: type[BaseException] | BaseException) -> str:
    """Return the ``error.type`` of the semantic conventions: the qualified name of the exception's class."""
    kind: type = error if issubclass(type(error), type) else type(error)  # type: ignore[assignment]
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def described(error: BaseException) -> dict[str, types.AttributeValue]:
    return {
        "exception.type": error_name(error),
        "exception.message": message(error),
        "exception.stacktrace": stack(error),
    }


def message(error: object) -> str:
    """Return the text of an exception. Arguments that could have to wait are shown by their types."""
    kind = type(error)
    if not issubclass(kind, BaseException):
        return quoted(error)
    given = _given(error)  # type: ignore[arg-type]
    if not _readable(given) and kind.__str__ in _BUILT_IN:
        return ", ".join(str(one) if _readable(one) else f"<{kind_of(one)}>" for one in given)
    try:
        return str(error)
    except Exception:
        return f"<{kind.__qualname__} without a text>"


def stack(error: BaseException) -> str:
    """Return the traceback of an exception as text; without those it came from, if their texts could have to wait."""
    if not issubclass(type(error), BaseException):
        return ""
    if _readable(_chain(error)):
        try:
            return "".join(traceback.format_exception(error))
        except Exception:
            pass
    return "".join(traceback.format_tb(error.__traceback__)) + f"{type(error).__qualname__}: {message(error)}\n"


def _given(error: BaseException) -> tuple[object, ...]:
    given: tuple[object, ...] = BaseException.__dict__["args"].__get__(error)  # a subclass cannot replace them
    return given


def _chain(error: BaseException) -> list[object]:
    arguments: list[object] = []
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        arguments += _given(one)
        waiting += [one.__cause__, one.__context__]
    return arguments


def _readable(value: object) -> bool:
    kind = type(value)
    if kind in (list, tuple):
        return all(_readable(one) for one in value)  # type: ignore[attr-defined]
    if issubclass(kind, BaseException):
        return _readable(_given(value))  # type: ignore[arg-type]
    return kind in (bytes, type(None)) or text(value) is not None or issubclass(kind, type)
