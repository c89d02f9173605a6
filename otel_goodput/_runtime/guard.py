"""Telemetry never breaks training: errors of this package are contained, logged once per site and counted.

With ``OTEL_GOODPUT_STRICT=1`` (set in the tests) they are raised instead.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from threading import Thread, get_ident
from typing import ParamSpec, TypeVar

from otel_goodput._settings.envvars import OTEL_GOODPUT_STRICT
from otel_goodput._text.redact import redacting_logger
from otel_goodput.errors import PhaseError

logger = redacting_logger("otel_goodput")

P = ParamSpec("P")
T = TypeVar("T")

TRUE = frozenset({"1", "true", "yes", "on"})

contained: Counter[str] = Counter()
"""How often each site failed."""


def strict() -> bool:
    return os.environ.get(OTEL_GOODPUT_STRICT.name, "").strip().lower() in TRUE


def contain(site: str, error: BaseException) -> None:
    """Report an error of this package at `site`: logged with a traceback once, then only counted; raised if strict."""
    contained[site] += 1
    if strict():
        raise error
    if contained[site] == 1:
        logger.warning("%s failed; training goes on: %s", site, error, exc_info=error)


class containing:
    """A ``with`` block of which every ``Exception`` is contained, see :func:`contain`."""

    __slots__ = ("_site",)

    def __init__(self, site: str) -> None:
        self._site = site

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if not isinstance(error, Exception):
            return False
        contain(self._site, error)
        return True


def refuse(error: PhaseError) -> None:
    """Report wrong use of a phase, once for each phase; raised only if strict."""
    if strict():
        raise error
    report_once(f"phase {error.phase}", "%s; this phase is not recorded", error)


def unrecorded(site: str, error: Exception) -> None:
    """Report why a phase is not recorded: it was used wrongly, or something of ours failed at `site`."""
    if isinstance(error, PhaseError):
        refuse(error)
    else:
        contain(site, error)


def report_once(site: str, message: str, *arguments: object, error: BaseException | None = None) -> None:
    """Log a warning the first time `site` reports one, with the traceback of `error`; later ones are only counted."""
    contained[site] += 1
    if contained[site] == 1:
        logger.warning(message, *arguments, exc_info=error)


def started(thread: Thread, lost: str) -> bool:
    """Start a thread; returns False if the system has no more of them, and says once what is `lost` without it."""
    try:
        thread.start()
    except RuntimeError as error:  # pids.max of a container, RLIMIT_NPROC, or the interpreter is ending
        report_once(f"thread {thread.name}", "%s: %s; training goes on", lost, error)
        return False
    return True


@contextmanager
def quietly(*loggers: str) -> Iterator[None]:
    """Suppress what this thread logs to these loggers of other packages."""
    thread = get_ident()

    def others(_: logging.LogRecord) -> bool:  # filters run on the thread that logs
        return get_ident() != thread

    with ExitStack() as exits:
        for logger in map(logging.getLogger, loggers):
            logger.addFilter(others)
            exits.callback(logger.removeFilter, others)
        yield


def guarded(default: T) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that contains every ``Exception`` of the function and then returns `default`."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                contain(function.__qualname__, error)
                return default

        return call

    return decorate
