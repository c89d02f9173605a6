"""The actions of the process for signals, as the operating system knows them.

Python's :mod:`signal` knows only the handlers that were set through it. Native code sets others without its knowledge
(JAX's preemption service is one), and only ``sigaction`` shows them.
"""

from __future__ import annotations

import sys
from typing import Any, Final, NamedTuple

try:
    import ctypes
except ImportError:  # Python may be built without it
    ctypes = None  # type: ignore[assignment]

DEFAULT: Final = 0  # SIG_DFL
IGNORE: Final = 1  # SIG_IGN
_SIGINFO: Final = 0x40 if sys.platform == "darwin" else 4  # SA_SIGINFO: the handler takes three arguments


class Action(NamedTuple):
    """One action: address of the handler, flags, and the whole ``struct sigaction``."""

    handler: int
    flags: int
    raw: bytes


if ctypes is not None:

    class _Sigaction(ctypes.Structure):
        if sys.platform == "darwin":
            _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_uint32), ("flags", ctypes.c_int)]
        else:
            _fields_ = [
                ("handler", ctypes.c_void_p),
                ("mask", ctypes.c_ulong * (1024 // 8 // ctypes.sizeof(ctypes.c_ulong))),
                ("flags", ctypes.c_int),
                ("restorer", ctypes.c_void_p),
            ]


_ONE_ARGUMENT: Final = (ctypes.c_int,) if ctypes is not None else ()
_THREE_ARGUMENTS: Final = (*_ONE_ARGUMENT, ctypes.c_void_p, ctypes.c_void_p) if ctypes is not None else ()


def _sigaction() -> Any:
    """Return the C library's ``sigaction``, or None if there is none."""
    if ctypes is None or sys.platform == "win32":
        return None
    try:
        return ctypes.CDLL(None).sigaction
    except (OSError, AttributeError):
        return None


_SIGACTION: Final = _sigaction()


def read(signum: int) -> Action | None:
    """Return the action in force; None if it cannot be known."""
    if _SIGACTION is None:
        return None
    action = _Sigaction()
    if _SIGACTION(ctypes.c_int(signum), None, ctypes.byref(action)) != 0:
        return None
    return Action(action.handler or DEFAULT, action.flags, bytes(action))


def write(signum: int, action: Action | None) -> bool:
    """Put `action` in force, or the default one if it is None. From any thread. Return False if that is impossible."""
    if _SIGACTION is None:
        return False
    wanted = _Sigaction() if action is None else _Sigaction.from_buffer_copy(action.raw)
    return bool(_SIGACTION(ctypes.c_int(signum), ctypes.byref(wanted), None) == 0)


def call(signum: int, action: Action) -> None:
    """Call the handler of `action` on this thread, as the signal would."""
    if action.flags & _SIGINFO:
        # The sender is unknown: siginfo has the signal's number and otherwise zeros, in a buffer of ample size.
        siginfo, context = ctypes.create_string_buffer(256), ctypes.create_string_buffer(8192)
        ctypes.memmove(siginfo, ctypes.byref(ctypes.c_int(signum)), ctypes.sizeof(ctypes.c_int))
        ctypes.CFUNCTYPE(None, *_THREE_ARGUMENTS)(action.handler)(
            signum, ctypes.addressof(siginfo), ctypes.addressof(context)
        )
    else:
        ctypes.CFUNCTYPE(None, *_ONE_ARGUMENT)(action.handler)(signum)
