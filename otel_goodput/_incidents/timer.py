"""The interpreter's one timer that writes all stacks: :func:`faulthandler.dump_traceback_later`.

It is a thread of C, which needs no GIL. So it reads the stacks of threads that run, if it goes off in a process that
was stopped (SIGSTOP) for longer than it was set for, and goes on; CPython 3.11 has crashed of that. It is only set if
the user wants that.

There is one in a process, and nobody can ask whether it is set, so calls of others are noticed by functions put in
their place, which only pass them on; ours then stands down for good.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

FORK_S: Final = 1.0  # at most, for the timer to be set
_PYTEST: Final = "_pytest.faulthandler"  # it sets the timer for its option faulthandler_timeout


class Timer:
    """The timer, for one user in this process at a time.

    Attributes:
        yielded: the program, or pytest, uses the timer itself.
    """

    def __init__(self) -> None:
        self.yielded = False
        self._later: Callable[..., Any] = faulthandler.dump_traceback_later
        self._cancel: Callable[[], Any] = faulthandler.cancel_dump_traceback_later
        self._owner: object = None
        self._users = 0
        self._setting = threading.Lock()  # held while it is set, and by a thread that forks
        self._forking: list[bool] = []  # whether each thread that forks has that lock
        self._forks = False
        self._latest: Callable[[], Any] | None = None  # the latest call of the program's own

    def install(self) -> None:
        """Notice calls of others from now on, until :meth:`remove`."""
        self._users += 1
        if self._users > 1:
            return
        self._later, self._cancel = faulthandler.dump_traceback_later, faulthandler.cancel_dump_traceback_later
        self._passing: tuple[Any, Any] = self._noticing(self._later), self._noticing(self._cancel)
        faulthandler.dump_traceback_later, faulthandler.cancel_dump_traceback_later = self._passing
        if not self._forks and hasattr(os, "register_at_fork"):
            # A child inherits a timer that never runs, and its interpreter would wait for that at its end, forever.
            os.register_at_fork(before=self._before_fork, after_in_parent=self._forked, after_in_child=self._in_child)
            self._forks = True

    def remove(self, owner: object) -> None:
        """Stop the timer of `owner`, and put the functions back, unless somebody has replaced them since."""
        self.stop(owner)
        self._users -= 1
        if self._users:
            return
        for name, mine, theirs in zip(
            ("dump_traceback_later", "cancel_dump_traceback_later"),
            self._passing,
            (self._later, self._cancel),
            strict=True,
        ):
            if getattr(faulthandler, name) is mine:
                setattr(faulthandler, name, theirs)

    def _noticing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def passing(*args: Any, **kwargs: Any) -> Any:
            self.yielded, self._owner = True, None
            self._latest = lambda: function(*args, **kwargs)
            return function(*args, **kwargs)

        passing.__name__, passing.__doc__ = function.__name__, function.__doc__
        return passing

    def free(self, owner: object) -> bool:
        """Whether `owner` may set it."""
        return not self.yielded and self._owner in (None, owner) and _PYTEST not in sys.modules

    def set(self, owner: object, descriptor: int, seconds: float) -> bool:
        """Have all stacks written to `descriptor` in so many seconds; return whether that was done.

        Takes some 25 µs, and waits for the thread of the timer before, with the GIL.
        """
        if not self.free(owner) or not self._setting.acquire(blocking=False):  # no, or another thread forks
            return False
        try:
            self._owner = owner
            self._later(seconds, file=descriptor)
            return self._stayed_ours()
        except (OSError, ValueError, RuntimeError):  # no more threads, or the interpreter ends
            self._owner = None
            return False
        finally:
            self._setting.release()

    def _stayed_ours(self) -> bool:
        """Return whether nobody called meanwhile; otherwise their call counts, and is made again."""
        if self.yielded and self._latest is not None:
            self._latest()
        return not self.yielded

    def stop(self, owner: object) -> None:
        """Stop the timer, if it is the `owner`'s; it may be writing stacks, and then this waits for that."""
        if self._owner is owner and owner is not None:
            self._owner = None
            if not self.yielded:
                self._cancel()

    def is_set(self, owner: object) -> bool:
        return owner is not None and self._owner is owner

    def _before_fork(self) -> None:
        self._forking.append(self._setting.acquire(timeout=FORK_S))
        self.stop(self._owner)

    def _forked(self) -> None:
        if self._forking and self._forking.pop():
            self._setting.release()

    def _in_child(self) -> None:
        self._setting = threading.Lock()
        self._forking.clear()


timer: Final = Timer()
