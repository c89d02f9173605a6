"""What recorders take from the machine: the clock, the disk, threads. ``otel_goodput.testing`` puts others in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from otel_goodput._runtime.clock import Clock, leaping
from otel_goodput._settings.options import Options

Leap = Callable[[int], None]


def _given(_: Any, options: Options) -> Options:
    return options


@dataclass(frozen=True)
class Host:
    """The machine, as a recorder sees it when it is opened.

    Attributes:
        clock: returns a clock, and what sets it forward by some ns after the machine was suspended; None if nothing
            does.
        in_memory: recorders write no files, leave no threads, and do not ask the network where they run.
        options: returns the options in force for a recorder and the options that it was given.
    """

    clock: Callable[[], tuple[Clock, Leap | None]] = leaping
    in_memory: bool = False
    options: Callable[[Any, Options], Options] = _given


current = Host()


@contextmanager
def replaced(host: Host) -> Iterator[None]:
    """Recorders opened in this block see `host` instead of the machine."""
    global current
    before, current = current, host
    try:
        yield
    finally:
        current = before
