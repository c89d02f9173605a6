"""What schedulers and launchers report about the run: how often it was started before, and how it last ended.

They report it in environment variables, which are only read here.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from otel_goodput._runtime.guard import report_once
from otel_goodput._settings.envvars import OTEL_GOODPUT_EXIT_CODE
from otel_goodput._settings.placement import LAUNCHERS, whole
from otel_goodput._text.durations import NS
from otel_goodput.semconv import Reason


class Launch(NamedTuple):
    """What one launcher reports about this process. None: not reported, or not a sensible value."""

    name: str
    restarts: int | None  # how often it started the job before this time
    job_id: str | None  # the same over all restarts
    max_restarts: int | None = None
    ends_at: int | None = None  # when it will end the job, ns since the epoch


# Shells report the end by a signal as 128 + its number, Python's subprocess as minus its number.
_SIGNALED: Final = frozenset({signal.SIGTERM, signal.SIGINT})


def launches(environ: Mapping[str, str] = os.environ) -> tuple[Launch, ...]:
    """Return what the detected launchers of this process report, the outermost first."""
    detected = []
    for one in LAUNCHERS:
        names = (*one.restarts, *one.job_id, *one.max_restarts, *one.ends_at)
        if any(environ.get(name, "").strip() for name in names if name.startswith(one.prefix)):
            ends_at = _number(environ, one.ends_at)
            counts = _number(environ, one.restarts), _text(environ, one.job_id)[1] or None
            most = _number(environ, one.max_restarts)
            detected.append(Launch(one.name, *counts, most, None if ends_at is None else ends_at * NS))
    return tuple(detected)


def unseen(attempt: int) -> str:
    """Return a message if a launcher counts more starts than the journal (`attempt` + 1); else an empty text."""
    for launch in launches():
        missing = (launch.restarts or 0) - attempt
        if missing > 0:
            return (
                f"{launch.name} has restarted this job {launch.restarts} times, but the journal has {attempt}: "
                f"{missing} starts ended before configure(), or used another directory or run id. Their time counts "
                "as infrastructure recovery, or not at all"
            )
    return ""


def exit_code(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the exit status of the previous attempt; None if it is not given."""
    return _number(environ, (OTEL_GOODPUT_EXIT_CODE.name,), least=-255)


def exit_reason(code: int) -> str:
    """Return one of ``semconv.REASONS`` for the exit status `code` of an attempt."""
    if code == 0:
        return Reason.RESTART
    number = -code if code < 0 else code - 128
    return Reason.SIGNAL if number in _SIGNALED else Reason.CRASH


def _text(environ: Mapping[str, str], names: Sequence[str]) -> tuple[str, str]:
    """Return the name and the value of the first variable that is set; two empty texts if none is."""
    return next(((name, environ[name].strip()) for name in names if environ.get(name, "").strip()), ("", ""))


def _number(environ: Mapping[str, str], names: Sequence[str], least: int = 0) -> int | None:
    name, text = _text(environ, names)
    if not text:
        return None
    if whole(text.removeprefix("-") if least < 0 else text) is not None and int(text) >= least:
        return int(text)
    wrong = "%s=%r is ignored: it is not an integer in the accepted range, which begins at %d"
    report_once(f"environment {name}", wrong, name, text[:60], least)
    return None
