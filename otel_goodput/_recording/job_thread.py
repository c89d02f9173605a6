"""Which thread trains, and in which asyncio task."""

from __future__ import annotations

import sys
import threading
from typing import Any
from weakref import ref


def in_event_loop() -> bool:
    """Whether an asyncio event loop runs in this thread."""
    asyncio = sys.modules.get("asyncio")
    # While another thread imports asyncio, the module is there and its functions are not.
    return asyncio is not None and getattr(asyncio, "_get_running_loop", _nothing)() is not None


def _current_task() -> Any:
    """Return the asyncio task that is running; None outside of an event loop."""
    return sys.modules["asyncio"].current_task() if in_event_loop() else None


def _nothing() -> None:
    """Stand for a reference to no task, and for a function that finds no event loop."""


class JobThread:
    """The training thread; phases of other threads do not block training unless their user says so.

    It is the thread that opened the job, until another thread opens steps (see :meth:`moves`).

    Attributes:
        identity: id of the thread.
        stepped: the thread has opened a step.
        tasks: the job or a step was opened in an asyncio task.
        latest_change: replaced whenever a phase begins or ends, or something else changes that the short way of a loop
            takes for given, but not by that short way itself.
    """

    __slots__ = ("_task", "identity", "latest_change", "stepped", "tasks")

    def __init__(self) -> None:
        self.identity = threading.main_thread().ident
        self.stepped = False
        self.tasks = False
        self.latest_change = object()
        self._task: Any = _nothing  # a weak reference to the task of the latest step, or of the job

    def take(self) -> None:
        """Make the current thread the training thread, because it begins the job."""
        self.identity = threading.get_ident()
        self.latest_change = object()
        self.stepped = False
        self.note_task()

    def step(self) -> None:
        """Take note that the training thread has opened a step."""
        self.stepped = True
        self.note_task()

    def note_task(self) -> None:
        """Take note that the running task trains."""
        task = _current_task()
        if task is not self._task():
            self._task = _nothing if task is None else ref(task)
            self.tasks |= task is not None
            self.latest_change = object()

    def in_another_task(self) -> bool:
        """Whether the training thread runs another task than the one that trains."""
        if not self.tasks:
            return False
        trains = self._task()
        return trains is not None and _current_task() is not trains

    def blocks(self, blocking: bool | None) -> bool:
        """Return whether a phase opened now by this thread holds up training; `blocking` is the user's argument."""
        return threading.get_ident() == self.identity if blocking is None else blocking

    def moves(self, blocking: bool | None) -> bool:
        """Make the current thread, which opens a step, the training thread; return whether that was done.

        Not if the user says whether the step is `blocking`, or if the previous one has opened a step and is alive.
        """
        if blocking is not None:
            return False
        if self.stepped and any(thread.ident == self.identity for thread in threading.enumerate()):
            return False
        self.identity = threading.get_ident()
        return True
