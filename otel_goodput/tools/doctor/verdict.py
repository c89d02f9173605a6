"""The verdict of an examination, in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from otel_goodput.guard import TRUE
from otel_goodput.tools.doctor.findings import PROBLEM, WARNING, Finding
from otel_goodput.tools.doctor.services import GOOGLE

MOST: Final = 4  # problems that the line names


def verdict(findings: Sequence[Finding], exporters: Sequence[str], environ: Mapping[str, str], *, asked: bool) -> str:
    """Return what is wrong, or what a job would do if nothing is: ``2 problems: …; 1 warning`` or ``Ready: …``.

    `exporters` are the names of those that get something to export here; `asked` is whether requests were sent to
    Google Cloud.
    """
    problems = Counter(one.brief or one.about for one in findings if one.level == PROBLEM)
    warnings = sum(one.level == WARNING for one in findings)
    line = _named(problems) if problems else _ready(exporters, environ, asked)
    return f"{line}; {_counted(warnings, WARNING)}" if warnings else line


def _counted(number: int, noun: str) -> str:
    """Return ``1 problem``, ``2 problems``, ``0 warnings``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _named(problems: Counter[str]) -> str:
    total = problems.total()
    shown = list(problems.items())[:MOST]
    names = [brief if number == 1 else f"{brief} ({number} times)" for brief, number in shown]
    rest = total - sum(number for _, number in shown)
    return f"{_counted(total, PROBLEM)}: {', '.join(names)}{f', and {rest} more' if rest else ''}"


def _ready(exporters: Sequence[str], environ: Mapping[str, str], asked: bool) -> str:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() in TRUE:
        return "Off: OTEL_SDK_DISABLED is set, so nothing is recorded"
    if not exporters:
        return "Ready: the job keeps a journal, and this process exports nothing"
    unasked = "" if asked or GOOGLE.keys().isdisjoint(exporters) else " (`--gcp` also asks Google Cloud)"
    return f"Ready: the job keeps a journal and exports with {', '.join(exporters)}{unasked}"
